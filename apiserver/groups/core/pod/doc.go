// Package pod declares pods: their defaults, validation and printing, the fields that an update may
// change, and the rules of their subresources for ephemeral containers and for resizing.
//
// The rules of a pod's spec that templates share are in package podtemplate. It is pure.
package pod
