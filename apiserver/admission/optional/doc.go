// Package optional holds the admission steps of Kubernetes that run only when they are enabled.
//
// Steps that need the namespace of a pod read it from the API when the lister lacks it.
package optional
