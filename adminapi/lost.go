package adminapi

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/localpv"
)

// Lost returns those of the volumes that their nodes have found to be lost.
func Lost(volumes []*corev1.PersistentVolume) (lost []clusterstatus.LostVolume) {
	for _, pv := range volumes {
		if !localpv.Is(pv) || pv.Annotations[localpv.DirectoryAnnotation] != localpv.Lost ||
			pv.DeletionTimestamp != nil {
			continue
		}
		v := clusterstatus.LostVolume{Name: pv.Name, Node: pv.Labels[localpv.NodeLabel], Path: pv.Spec.Local.Path}
		if c := pv.Spec.ClaimRef; c != nil {
			v.Claim = c.Namespace + "/" + c.Name
		}
		lost = append(lost, v)
	}
	slices.SortFunc(lost, func(a, b clusterstatus.LostVolume) int { return strings.Compare(a.Name, b.Name) })
	return lost
}
