// Package persistentvolume declares persistent volumes and the claims to them: their defaults,
// validation and printing, and the fields that an update may change.
//
// The rules of a volume's source are in package volume, and those of a claim's spec, which pods may
// carry, too, in package podtemplate. It is pure.
package persistentvolume
