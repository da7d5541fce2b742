// Package clusterstatus makes one status out of the servers' reports on themselves and each other.
// It warns of problems, each with its remedy, and formats both for people. Package examination
// finds more, in the diagnoses that the doctor has collected.
//
// The package is pure: the caller asks the servers and passes their answers. Therefore it works
// without a leader, with dead servers, and with answers of other versions.
package clusterstatus
