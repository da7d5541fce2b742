package clusterstatus

import (
	"maps"
	"slices"

	"github.com/barque/barque/internal/localpv"
)

// LostVolume is a local volume whose directory was made, and is not on its node any more. Its pods
// wait until a person puts the data back or declares it lost.
type LostVolume struct {
	Name  string `json:"name"` // of the PersistentVolume
	Node  string `json:"node"`
	Path  string `json:"path"`
	Claim string `json:"claim,omitempty"` // NAMESPACE/NAME
}

// shownLost bounds the warnings of one node's volumes.
const shownLost = 5

// lost warns of volumes whose data is not on their node.
func (w *warner) lost() {
	byNode := map[string]int{}
	for _, v := range w.status.Lost {
		byNode[v.Node]++
		if byNode[v.Node] > shownLost {
			continue
		}
		of := ""
		if v.Claim != "" {
			of = " of claim " + v.Claim
		}
		w.add(Critical, v.Node, v.Node,
			"put the data back in that directory; or declare it lost, and begin with an empty one, from anywhere: barque "+localpv.DeclareLost(v.Name),
			"the data of volume %s%s is not on node %s any more: the directory %s was made before, and is gone", v.Name,
			of, v.Node, v.Path)
	}
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		if n := byNode[node]; n > shownLost {
			w.add(Critical, node, "", "barque kubectl get pv -l "+localpv.NodeLabel+"="+node,
				"and of %d more volumes on node %s", n-shownLost, node)
		}
	}
}
