"""Hosts of our own for the tasks: ordinary modules with good slot names, nothing special about them."""

from esper.kasmina.hosts.conv import ConvNet
from esper.kasmina.hosts.drawn import DrawnHost, HostShape
from esper.kasmina.hosts.gpt import GPT
from esper.kasmina.hosts.mlp import MLP
from esper.kasmina.hosts.resnet import ResNet

__all__ = ["GPT", "MLP", "ConvNet", "DrawnHost", "HostShape", "ResNet"]
