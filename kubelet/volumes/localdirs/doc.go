// Package localdirs owns the directories of the persistent volumes that the cluster's provisioner
// has placed on this node: it makes, limits, measures and deletes them. Package volumes mounts them
// into pods; package localvolumes deletes them when the cluster asks for it.
package localdirs
