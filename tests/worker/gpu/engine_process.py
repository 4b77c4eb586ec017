"""`python -m tests.worker.gpu.engine_process`: an engine process whose GPUs are CPU tensors, one process per rank."""

from octavo_engine.ipc.signals import leave_to_parent

if __name__ == "__main__":
    leave_to_parent()
    from octavo_engine.worker.load import load_on_gpus
    from octavo_engine.worker.process import exit_now, main

    exit_now(main(lambda config, report, give_up: load_on_gpus(config, report, give_up, "cpu")))
