package vk

// fileCopy stands for a copy of a file descriptor: no driver for Windows has VK_KHR_external_memory_fd.
type fileCopy struct{ fd int }

func copyFile(int) (fileCopy, bool) { return fileCopy{}, false }
func (*fileCopy) closeSame()        {}

// notMemory says what a descriptor is, if it is surely no memory of a driver; "" otherwise.
func notMemory(int) string { return "" }
