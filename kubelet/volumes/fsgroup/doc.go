// Package fsgroup gives the files of volumes to the group that a pod names for them
// (securityContext.fsGroup).
package fsgroup
