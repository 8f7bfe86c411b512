"""What tasks are made of: texts, images, labels, their splits and the damage that may be done to them."""
