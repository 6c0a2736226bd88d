// Package enum prints and parses the values of enumerations.
package enum
