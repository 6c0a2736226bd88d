// Package atomicfile replaces files atomically: a reader finds the old content or the new
// content, however the writer ends.
//
// Resolve finds the target of a path, Create creates a hidden file in the target's folder,
// and Replace renames it. The writer holds a lock on the hidden file. A killed writer leaves
// the file without a lock, and the next Create of the same target removes it.
//
// A replaced file keeps its permissions, and its owner if the system lets the caller set
// it. A new file has mode 0666 minus the umask.
//
// Open and Read accept only regular files, so that a named pipe cannot block the reader.
package atomicfile
