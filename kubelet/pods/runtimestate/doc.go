// Package runtimestate reads the container runtime's state of a pod, in the form that package
// lifecycle decides by. Each read asks the runtime anew. Only the termination messages of ended
// containers are kept: they do not change, and their files may be long.
package runtimestate
