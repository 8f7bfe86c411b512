"""python -m depthscope"""

from depthscope.cli.main import run

if __name__ == "__main__":
    run()
