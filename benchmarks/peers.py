"""Step times of measured GPT runs by other predictors, from checkouts of their repositories.

Each runs as its README says: Calculon with its own file of the A100 80 GB, llm-analysis with the
efficiencies that its README names for training (0.5 of the peak, 0.9 of the memory). Both get the
network of the measured machines. Neither is copied or changed here.
"""

import json
import logging
import sys

NODE_GPUS = 8


def calculon(checkout, runs, cluster):
    """[run] seconds by Calculon, None where it refuses the run."""
    sys.path.insert(0, str(checkout))
    from calculon.llm import Llm
    from calculon.system import System

    machine = json.loads((checkout / "systems" / "a100_80g.json").read_text(encoding="utf-8"))
    machine["networks"][1]["bandwidth"] = node_network(cluster) / NODE_GPUS
    seconds = []
    for run in runs:
        llm, plan = run.llm, run.plan
        shape = {
            "name": llm.name,
            "hidden": llm.hidden,
            "feedforward": llm.ffn,
            "seq_size": llm.seq_len,
            "attn_heads": llm.heads,
            "attn_size": llm.head_dim,
            "num_blocks": llm.layers,
        }
        execution = {
            "num_procs": plan.gpus,
            "tensor_par": plan.tp,
            "pipeline_par": plan.pp,
            "data_par": plan.dp,
            "tensor_par_net": int(plan.tp > NODE_GPUS),
            "pipeline_par_net": int(plan.tp * plan.pp > NODE_GPUS),
            "data_par_net": int(plan.tp * plan.dp > NODE_GPUS),
            "batch_size": plan.global_batch,
            "microbatch_size": plan.micro_batch,
            "datatype": "float16",
            "fused_activation": True,
            "attention_type": "multihead",
            "activation_recompute": {"selective": "attn_only"}.get(plan.recompute, plan.recompute),
            "pipeline_interleaving": plan.vpp,
            "optimizer_sharding": plan.zero >= 1 and plan.dp > 1,
            "tensor_par_comm_type": "ar",
            "tensor_par_overlap": "none",
            "seq_par_ag_redo": False,
            "data_par_overlap": False,
            "weight_offload": False,
            "activations_offload": False,
            "optimizer_offload": False,
            "training": True,
        }
        try:
            model = Llm(Llm.Application(shape), logging.getLogger("calculon"))
            model.compile(System(machine), Llm.Execution.from_json(execution))
            model.run(System(machine))
        except (Llm.Error, AssertionError):
            seconds.append(None)
        else:
            seconds.append(model.get_total_time())
    return seconds


def llm_analysis(checkout, runs, cluster):
    """[run] seconds by llm-analysis, None where it refuses the run."""
    sys.path.insert(0, str(checkout))
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import GPUConfig, ModelConfig, ParallelismConfig

    logging.disable(logging.CRITICAL)
    folder = checkout / "llm_analysis" / "gpu_configs"
    gpu = json.loads((folder / "a100-sxm-80gb.json").read_text(encoding="utf-8"))
    gpu["inter_node_bandwidth_in_GB_per_sec"] = node_network(cluster)
    again = {
        "none": ActivationRecomputation.NONE,
        "selective": ActivationRecomputation.ATTN_COMPUTE,
        "full": ActivationRecomputation.FULL,
    }
    seconds = []
    for run in runs:
        llm, plan = run.llm, run.plan
        model = ModelConfig(
            name=llm.name,
            num_layers=llm.layers,
            n_head=llm.heads,
            hidden_dim=llm.hidden,
            vocab_size=llm.vocab,
            max_seq_len=llm.seq_len,
            ffn_embed_dim=llm.ffn,
        )
        degrees = ParallelismConfig(tp_size=plan.tp, pp_size=plan.pp, dp_size=plan.dp, sp_size=1)
        try:
            analysis = LLMAnalysis(
                model,
                GPUConfig(**gpu),
                parallelism_config=degrees,
                flops_efficiency=0.5,
                hbm_memory_efficiency=0.9,
            )
            result = analysis.training(
                batch_size_per_gpu=plan.micro_batch,
                gradient_accumulation_steps=plan.microbatches,
                global_batch_size=plan.global_batch,
                seq_len=llm.seq_len,
                activation_recomputation=again[plan.recompute],
                ds_zero=DSZeRO(plan.zero),
                flash_attn=plan.flash,
            )
        except (AssertionError, ValueError):
            seconds.append(None)
        else:
            seconds.append(result["latency_per_iter"])
    logging.disable(logging.NOTSET)
    return seconds


def node_network(cluster):
    """GB/s of a node's network in one direction."""
    return cluster.network.nics * cluster.network.nic_bandwidth / 1e9


PEERS = {"Calculon": calculon, "llm-analysis": llm_analysis}
