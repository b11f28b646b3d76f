"""Detection and segmentation transfer: torchvision heads on an encoder. Only the command line imports this package."""
