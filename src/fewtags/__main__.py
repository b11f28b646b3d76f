"""`python -m fewtags`, which is also what `torchrun -m` and `accelerate launch -m` start."""

from fewtags.cli.main import run

if __name__ == "__main__":
    run()
