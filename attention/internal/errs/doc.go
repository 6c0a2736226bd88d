// Package errs makes errors that match attention.ErrInvalid.
package errs
