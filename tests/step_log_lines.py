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
    "ImageNet example": [imagenet],
}
