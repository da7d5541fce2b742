// Package localpv has the names that the provisioner of local volumes, the API server and the nodes
// share. It has no behaviour.
package localpv

import (
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

const (
	// Provisioner is the provisioner of StorageClasses, and the annotation
	// pv.kubernetes.io/provisioned-by of volumes.
	Provisioner = "local.barque.io"
	// Finalizer is on a volume until its node has deleted the directory.
	Finalizer = "barque.io/local-volume"
	// NodeLabel names a volume's node. A node watches its volumes by it.
	NodeLabel = "barque.io/local-volume-node"
	// RootAnnotation is a node's directory for volumes.
	RootAnnotation = "barque.io/local-volumes"
	// EnforcedAnnotation is "true" on nodes whose volumes hold no more than their sizes.
	EnforcedAnnotation = "barque.io/local-volumes-enforced"
	// DirectoryAnnotation on a volume is its node's record of the directory: Made or Lost. A volume
	// without it has no directory yet. It is written before a pod gets the directory, so that an
	// empty directory never replaces one with data. Its removal declares the data lost: the next
	// pod begins with an empty directory.
	DirectoryAnnotation = "barque.io/local-volume-directory"
	// ProvisionedBy is upstream's annotation of volumes.
	ProvisionedBy = "pv.kubernetes.io/provisioned-by"
)

// Values of DirectoryAnnotation.
const (
	Made = "made" // the directory was there
	Lost = "lost" // it was made, and is not there any more
)

// DeclareLost is the command that declares the data of a volume lost.
func DeclareLost(pv string) string {
	return "kubectl annotate pv " + pv + " " + DirectoryAnnotation + "-"
}

// Path is the path of a volume, below a node's root.
func Path(root, pv string) string { return filepath.Join(root, pv) }

// Is reports whether the provisioner has made a volume.
func Is(pv *corev1.PersistentVolume) bool {
	return pv.Spec.Local != nil && pv.Annotations[ProvisionedBy] == Provisioner
}

// OnNode reports whether a volume is on a node, by its label and its node affinity. A user with the
// right to label volumes therefore cannot make a node give up another node's volume.
func OnNode(pv *corev1.PersistentVolume, node string) bool {
	if !Is(pv) || pv.Labels[NodeLabel] != node || pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return false
	}
	terms := pv.Spec.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 || len(terms[0].MatchFields) != 0 {
		return false
	}
	r := terms[0].MatchExpressions[0]
	return r.Key == corev1.LabelHostname && r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 &&
		r.Values[0] == node
}
