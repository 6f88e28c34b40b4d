"""From files of many formats to arrays of images and labels."""
