"""Tell bad EAGLE-3 draft weights from bad wiring, from stored samples alone. Needs torch and safetensors, nothing else."""

__version__ = "0.1.0"
