"""Lines of steps as tools write them, one function a tool; tests/real holds them to the sources."""


def at(seconds):
    return f"2026-08-22 10:{int(seconds) // 60:02d}:{int(seconds % 60):02d}"


def litgpt(step, seconds, end_s):
    return (
        f"Epoch 1 | iter {step} step {step // 4} | loss train: 1.646, val: n/a |"
        f" iter time: {seconds * 1000:.2f} ms{' (step)' if step % 4 == 3 else ''}"
        " remaining time: 0:01:02"
    )


def maxtext(step, seconds, end_s):
    return (
        f"I0317 10:00:21.847368 125344 metric_logger.py:181] completed step: {step}, seconds: "
        f"{seconds:.3f}, TFLOP/s/device: 240.782, Tokens/s/device: 9596.596, total_weights: 28764, "
        "loss: nan"
    )


def olmo_core(step, seconds, end_s):
    return (
        f"{at(end_s)}.123\tnode-1:0\tolmo_core.train.callbacks.console_logger:72\tINFO\t"
        f"[step={step}/10000,epoch=1,eta=1:02:03]\n    optim/total grad norm=0.5000\n"
        f"    throughput/device/BPS={1 / seconds:.3f}\n    throughput/device/BPS (actual avg)=9.000"
    )


def composer(step, seconds, end_s):
    return (
        f"[batch={step + 1}/300]:\n\t Train time/epoch: 0\n\t Train time/batch: {step}\n"
        f"\t Train time/batch_in_epoch: {step}\n\t Train loss/train/total: 8.4213\n"
        f"\t Train throughput/batches_per_sec: 0.0027\n\t Train time/train: {end_s / 3600:.4f}\n"
        "\t Train time/val: 0.0000\n\t Train time/total: 0.5249"
    )


def nanotron(step, seconds, end_s):
    ms = seconds * 1000
    text = f"{ms / 1000:.3g}K" if ms >= 1000 else f"{ms:.3g}"
    return (
        f"08/22/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|ip-1]: iteration: {step} / 1000 | "
        f"consumed_tokens: 1.05M | time_per_iteration_ms: {text} | tokens_per_sec: 520K | "
        "lm_loss: 11.2 | lr: 0.0001"
    )


def paddlenlp(step, seconds, end_s, spacing=1):
    return (
        f"[{at(end_s)},948] [    INFO] - loss: 1.21, learning_rate: 2.9e-05, global_step: {step}, "
        f"current_memory_allocated: 7.5, interval_runtime: {seconds * spacing:.4f}, "
        f"interval_samples_per_second: 9.3, interval_steps_per_second: {1 / seconds:.3f}, epoch: 1"
    )


def fairseq(step, seconds, end_s):
    return (
        f"{at(end_s)} | INFO | train_inner | epoch 001:    {step} / 487 loss=4.655, nll_loss=4.2, "
        f"ppl=18.4, wps=14185.4, ups={round(1 / seconds, 2)}, wpb=28201.6, bsz=1117.8, "
        f"num_updates={step}, lr=3.7e-05, gnorm=1.7, train_wall=93, gb_free=9.3, wall=0"
    )


def fairseq_json(step, seconds, end_s):
    return (
        f'{at(end_s)} | INFO | train_inner | {{"epoch": 3, "update": 2.174, "loss": "9.368", '
        f'"wps": "14185.4", "ups": "{round(1 / seconds, 2)}", "wpb": "28201.6", '
        f'"num_updates": "{step}", "lr": "3.7e-05", "train_wall": "93", "wall": "0"}}'
    )


def colossalai(step, seconds, end_s):
    return (
        f"[08/22/26 10:00:00] INFO     colossalai - colossalai - INFO: main train_step\n"
        f"                    INFO     colossalai - colossalai - INFO: [{step}/500] Loss:11.124, "
        f"Step time: {seconds:.3f}s, TFLOPS: 34.101, FWD time: 0.101s, BWD time: 0.301s, OPTIM "
        "time: 0.001s"
    )


def mmengine(step, seconds, end_s):
    return (
        f"07/03 13:04:21 - mmengine - INFO - Epoch(train)  [{1 + step // 40}][{step % 40:2d}/40]  "
        f"lr: 3.3333e-04  eta: 0:08:32  time: {seconds:.4f}  data_time: 0.0342  memory: 970  "
        "loss: 2.4180"
    )


def mmengine_iterations(step, seconds, end_s):
    return (
        f"07/03 13:04:21 - mmengine - INFO - Iter(train) [{step:6d}/160000]  lr: 9.9e-03  "
        f"eta: 1 day, 0:08:32  time: {seconds:.4f}  data_time: 0.0042  memory: 9700  loss: 2.4"
    )


def detectron2(step, seconds, end_s):
    return (
        f"[08/22 10:00:00 d2.utils.events]:  eta: 0:10:00  iter: {step}  total_loss: 1.234  "
        f"loss_cls: 0.51  time: 0.2001  last_time: {seconds:.4f}  data_time: 0.0041  "
        "last_data_time: 0.0031   lr: 0.00025  max_mem: 2722M"
    )


def timm(step, seconds, end_s):
    return (
        f"Train: {step // 40} [{step % 40:>4d}/40 ({100.0 * (step % 40) / 39:>3.0f}%)]  "
        f"Loss: 6.93 (6.93)  Time: {seconds:.3f}s,  512.00/s  (24.915s,  5.14/s)  LR: 1.000e-06  "
        "Data: 19.697 (19.697)"
    )


def imagenet(step, seconds, end_s):
    return (
        f"Epoch: [{step // 40}][{step % 40:4d}/40]\tTime {seconds:6.3f} ( 5.211)\t"
        "Data  0.000 ( 0.060)\tLoss 2.3915e+01 (1.5221e+01)\tAcc@1   0.00 (  5.68)"
    )


def imagenet_copy(step, seconds, end_s):
    return (
        f"Epoch: [{step // 40}][{step % 40}/40]\tTime {seconds:.3f}s (0.880s)\t"
        "Speed 29.5 samples/s\tData 0.000s (0.294s)\tLoss 0.00076 (0.00085)\t"
    )


def verl(step, seconds, end_s):
    """A validation that the step's time holds stands before it (older versions), else behind it."""
    within = step % 10 == 5
    total = seconds + 40.0 if within else seconds
    return (
        f"(TaskRunner pid=1271585) step:{step} - global_seqlen/min:484245 - actor/entropy:0.323 - "
        f"timing_s/start_profile:8.429680019617081e-05 - timing_s/gen:{seconds * 0.6} - "
        f"timing_s/update_actor:{seconds * 0.3}"
        + (" - timing_s/testing:30.0 - timing_s/save_checkpoint:10.0" if within else "")
        + f" - timing_s/step:{total!r}"
        + (" - timing_s/testing:30.0" if step % 10 == 7 else "")
        + " - timing_per_token_ms/gen:0.136 - perf/total_num_tokens:5322462 - "
        f"perf/time_per_step:{total!r} - perf/throughput:524.48"
    )


def verl_sft(step, seconds, end_s):
    return f"step:{step} - train/loss:0.51 - train/lr(1e-3):0.01 - train/time(s):{seconds!r}"


def slime(step, seconds, end_s):
    return (
        f"(MegatronTrainRayActor pid=1) [{at(end_s)}] train_metric_utils.py:401 - perf {step}: "
        f"{{'perf/train_wait_time': {seconds * 0.4}, 'perf/train_time': {seconds * 0.6}, "
        f"'perf/step_time': {seconds!r}, 'perf/wait_time_ratio': 0.4}}"
    )


def nemo_rl(step, seconds, end_s):
    return (
        f"\n{'=' * 25} Step {step}/60 {'=' * 25}\n\U0001f4ca Training Results:\n"
        f"  \u2022 Loss: 0.0012\n\n\u23f1\ufe0f  Timing:\n"
        f"  \u2022 Total step time: {seconds:.2f}s\n"
        f"  \u2022 policy_training: {seconds * 0.6:.2f}s (60.0%)"
    )


def prime_rl(step, seconds, end_s):
    text = f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:.1f}s"
    return (
        f"10:00:00    INFO Micro Step {step}/8 | Loss 0.5012\n"
        f"10:00:00 SUCCESS Step {step} | {text:>7} | Loss 0.5012 | Grad. Norm 0.1 | LR 1.00e-06"
    )


def clock(seconds):
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d}"


def llama_factory(step, seconds, end_s):
    tokens = 4096 * (step + 1)
    return (
        f'{{"current_steps": {step + 1}, "total_steps": 60, "loss": 5.7, "lr": 1e-06, '
        f'"epoch": 0.16, "percentage": 5.38, "elapsed_time": "{clock(end_s)}", '
        f'"remaining_time": "0:36:15", "throughput": {tokens / end_s:.2f}, '
        f'"total_tokens": {tokens}}}'
    )


def ms_swift(step, seconds, end_s):
    return (
        f'{{"loss": 3.9, "epoch": 0.02, "global_step/max_steps": "{step + 1}/60", '
        f'"elapsed_time": "{int(end_s)}s", "remaining_time": "3m 1s", "memory(GiB)": 16.38, '
        f'"train_speed(s/it)": {end_s / (step + 1):.6f}}}'
    )


def ms_swift_printed(step, seconds, end_s):
    return (
        "{'loss': 3.9, 'memory(GiB)': 16.38, "
        f"'train_speed(iter/s)': {(step + 1) / end_s:.6f}, 'epoch': 0.02, "
        f"'global_step/max_steps': '{step + 1}/60', 'percentage': '0.23%', "
        f"'elapsed_time': '{int(end_s)}s', 'remaining_time': '9h 30m 16s'}}"
    )


def mlx_lm(step, seconds, end_s):
    return (
        f"Iter {step}: Train loss 0.118, Learning Rate 1.000e-05, It/sec {1 / seconds:.3f}, "
        "Tokens/sec 233.302, Trained Tokens 15732, Peak mem 3.315 GB"
    )


def paddlenlp_example(step, seconds, end_s):
    return (
        f"global step {step}, epoch: 1, batch: {step}, loss: 1.53175, accu: 0.55650, "
        f"speed: {1 / seconds:.2f} step/s"
    )


TOOLS = {
    "LitGPT": [litgpt],
    "MaxText": [maxtext],
    "OLMo-core": [olmo_core],
    "Composer": [composer],
    "nanotron": [nanotron],
    "PaddleNLP": [paddlenlp],
    "fairseq": [fairseq, fairseq_json],
    "ColossalAI": [colossalai],
    "MMEngine": [mmengine, mmengine_iterations],
    "Detectron2": [detectron2],
    "timm": [timm],
    "ImageNet example": [imagenet, imagenet_copy],
    "verl": [verl],
    "verl's SFT": [verl_sft],
    "slime": [slime],
    "NeMo-RL": [nemo_rl],
    "prime-rl": [prime_rl],
    "LLaMA-Factory": [llama_factory],
    "ms-swift": [ms_swift, ms_swift_printed],
    "MLX LM": [mlx_lm],
    "PaddleNLP's examples": [paddlenlp_example],
}
