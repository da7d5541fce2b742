// Package optional holds the admission steps of Kubernetes that run only when they are enabled.
//
// Steps that need to know the namespace of a pod ask the API when the lister does not know it yet.
package optional
