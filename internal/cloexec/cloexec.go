// Package cloexec takes over file descriptors that a driver makes, so that programs started later do
// not inherit them.
package cloexec
