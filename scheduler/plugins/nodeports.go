package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

const portsKey fwk.StateKey = names.NodePorts

// NodePorts gives each host port of a node to one pod only.
type NodePorts struct{}

type hostPort struct {
	ip, protocol string
	port         int32
}

type hostPorts []hostPort

// Clone returns the same: it does not change.
func (p hostPorts) Clone() fwk.StateData { return p }

// Name of the plugin.
func (NodePorts) Name() string { return names.NodePorts }

// PreFilter collects the pod's host ports.
func (NodePorts) PreFilter(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	ports := portsOf(pod)
	if len(ports) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(portsKey, ports)
	return nil, nil
}

// PreFilterExtensions is nil: Filter looks at the node it is given.
func (NodePorts) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects a node on which a port is taken.
func (NodePorts) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	ports, ok := framework.ReadState[hostPorts](state, portsKey)
	if !ok {
		ports = portsOf(pod)
	}
	for _, p := range ports {
		if node.GetUsedPorts().CheckConflict(p.ip, p.protocol, p.port) {
			return fwk.NewStatus(fwk.Unschedulable, "node(s) didn't have free ports for the requested pod ports")
		}
	}
	return nil
}

// EventsToRegister names new nodes and the end of pods that hold a wanted port.
func (NodePorts) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		helper.Event(fwk.Node, fwk.Add),
		helper.Hinted(fwk.AssignedPod, fwk.Delete,
			func(_ klog.Logger, pod *v1.Pod, old, _ any) (fwk.QueueingHint, error) {
				gone, ok := old.(*v1.Pod)
				if !ok {
					return fwk.Queue, nil
				}
				freed := fwk.HostPortInfo{}
				framework.ForEachHostPort(gone, freed.Add)
				for _, p := range portsOf(pod) {
					if freed.CheckConflict(p.ip, p.protocol, p.port) {
						return fwk.Queue, nil
					}
				}
				return fwk.QueueSkip, nil
			}),
	}, nil
}

func portsOf(pod *v1.Pod) hostPorts {
	var ports hostPorts
	framework.ForEachHostPort(pod, func(ip, protocol string, port int32) {
		ports = append(ports, hostPort{ip, protocol, port})
	})
	return ports
}
