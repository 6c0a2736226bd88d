// Package atomicfile replaces files whole: whoever reads a name finds the old
// content or the new content and nothing in between, whatever ends the writer.
//
// Resolve says what a path stands for, Create writes next to it under a hidden
// name, and Replace renames. The hidden file is locked while its writer lives.
// A killed writer leaves it without a lock, and the next Create of the same
// target removes it.
//
// A replaced file keeps its permissions, and its owner where the system lets the
// caller set it. A new file takes 0666 without the umask.
//
// Open and Read take regular files alone, so that a named pipe in the place of a
// file cannot block the reader.
package atomicfile
