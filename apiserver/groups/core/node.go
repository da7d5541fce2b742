package core

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func nodes() resource.Resource {
	return &resource.Kind[corev1.Node]{
		GroupVersion:  version,
		Name:          "nodes",
		Singular:      "node",
		ShortNames:    []string{"no"},
		ClusterScoped: true,
		List:          &corev1.NodeList{},
		// The keys of nodes are called minions for as long as there have been nodes.
		Prefix:   "minions",
		Default:  defaultNode,
		Validate: validateNode,
		Warnings: func(_ context.Context, n, _ *corev1.Node) []string {
			if n.Spec.DoNotUseExternalID != "" {
				return []string{"spec.externalID: this field is deprecated, and is unused by Kubernetes"}
			}
			return nil
		},
		// A kubelet registers its node and reports its status in one write.
		Status: &resource.Status[corev1.Node]{KeepOnCreate: true, Validate: validateNodeStatus},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Status", "string", "Whether the node is ready, and whether pods are scheduled to it."),
			resource.Column("Roles", "string", "The roles of the node, from its labels."),
			resource.Age(),
			resource.Column("Version", "string", "Version of the kubelet."),
			resource.WideColumn("Internal-IP", "string", "Address of the node inside of the cluster."),
			resource.WideColumn("External-IP", "string", "Address of the node outside of the cluster."),
			resource.WideColumn("OS-Image", "string", "Operating system as the node reports it."),
			resource.WideColumn("Kernel-Version", "string", "Kernel as the node reports it."),
			resource.WideColumn("Container-Runtime", "string", "Container runtime as the node reports it."),
		},
		Row: nodeRow,
		Fields: func(n *corev1.Node) fields.Set {
			unschedulable := "false"
			if n.Spec.Unschedulable {
				unschedulable = "true"
			}
			return fields.Set{"spec.unschedulable": unschedulable}
		},
	}
}

func defaultNode(n *corev1.Node) {
	// What a node has is allocatable unless the node says how much it keeps for itself.
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
}

func validateNode(ctx context.Context, n, old *corev1.Node) field.ErrorList {
	errs := validation.Meta(n, old, false, validation.SubdomainName)
	spec := field.NewPath("spec")
	errs = append(errs, validateTaints(n.Spec.Taints, spec.Child("taints"))...)
	errs = append(errs, validatePodCIDRs(&n.Spec, spec)...)
	//lint:ignore SA1019 what has been removed is refused
	if n.Spec.ConfigSource != nil && (old == nil || old.Spec.ConfigSource == nil) {
		errs = append(errs, field.Forbidden(spec.Child("configSource"), "configSource may not be set: dynamic kubelet configuration has been removed"))
	}
	if n.Spec.PodPreemptionPolicy != nil {
		errs = append(errs, field.Forbidden(spec.Child("podPreemptionPolicy"), "is not supported by this server"))
	}
	if old == nil {
		return append(errs, validateNodeStatus(ctx, n, nil)...)
	}
	if old.Spec.ProviderID != "" {
		errs = append(errs, validation.Immutable(n.Spec.ProviderID, old.Spec.ProviderID, spec.Child("providerID"))...)
	}
	if len(old.Spec.PodCIDRs) > 0 {
		errs = append(errs, validation.Immutable(n.Spec.PodCIDRs, old.Spec.PodCIDRs, spec.Child("podCIDRs"))...)
	}
	return errs
}

func validateTaints(taints []corev1.Taint, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	type identity struct {
		key    string
		effect corev1.TaintEffect
	}
	seen := map[identity]bool{}
	for i, t := range taints {
		at := at.Index(i)
		errs = append(errs, validation.QualifiedName(t.Key, at.Child("key"))...)
		errs = append(errs, validation.Check(t.Value, at.Child("value"), utilvalidation.IsValidLabelValue)...)
		errs = append(errs, validation.Enum(t.Effect, at.Child("effect"),
			corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)...)
		if id := (identity{t.Key, t.Effect}); seen[id] {
			errs = append(errs, field.Duplicate(at, string(id.effect)+" of key "+id.key))
		} else {
			seen[id] = true
		}
	}
	return errs
}

func validatePodCIDRs(spec *corev1.NodeSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.PodCIDR != "" && (len(spec.PodCIDRs) == 0 || spec.PodCIDRs[0] != spec.PodCIDR) {
		errs = append(errs, field.Invalid(at.Child("podCIDRs"), spec.PodCIDRs, "first value must match `podCIDR`"))
	}
	if len(spec.PodCIDRs) > 2 {
		errs = append(errs, field.Invalid(at.Child("podCIDRs"), spec.PodCIDRs, "may hold no more than one CIDR for each IP family"))
	}
	for i, cidr := range spec.PodCIDRs {
		errs = append(errs, validation.CIDR(cidr, at.Child("podCIDRs").Index(i))...)
	}
	return errs
}

func validateNodeStatus(_ context.Context, n, _ *corev1.Node) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("status")
	for _, list := range []struct {
		name      string
		resources corev1.ResourceList
	}{{"capacity", n.Status.Capacity}, {"allocatable", n.Status.Allocatable}} {
		for _, name := range validation.SortedResources(list.resources) {
			key := at.Child(list.name).Key(string(name))
			errs = append(errs, validation.QualifiedName(string(name), key)...)
			errs = append(errs, validation.Quantity(name, list.resources[name], key)...)
		}
	}
	seen := map[corev1.NodeAddress]bool{}
	for i, address := range n.Status.Addresses {
		if seen[address] {
			errs = append(errs, field.Duplicate(at.Child("addresses").Index(i), address))
		}
		seen[address] = true
	}
	return errs
}

func nodeRow(n *corev1.Node, now time.Time) []any {
	info := &n.Status.NodeInfo
	return []any{
		n.Name,
		nodeStatus(n),
		nodeRoles(n),
		resource.Since(n.CreationTimestamp, now),
		info.KubeletVersion,
		nodeAddress(n, corev1.NodeInternalIP),
		nodeAddress(n, corev1.NodeExternalIP),
		orUnknown(info.OSImage),
		orUnknown(info.KernelVersion),
		orUnknown(info.ContainerRuntimeVersion),
	}
}

func nodeStatus(n *corev1.Node) string {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			status = "NotReady"
			if c.Status == corev1.ConditionTrue {
				status = "Ready"
			}
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

// Labels that give a node a role: either by their key, whose end is the role, or by their value.
const (
	rolePrefix = "node-role.kubernetes.io/"
	roleLabel  = "kubernetes.io/role"
)

func nodeRoles(n *corev1.Node) string {
	var roles []string
	for key, value := range n.Labels {
		role, ok := strings.CutPrefix(key, rolePrefix)
		if key == roleLabel {
			role, ok = value, true
		}
		if ok && role != "" && !slices.Contains(roles, role) {
			roles = append(roles, role)
		}
	}
	slices.Sort(roles)
	return orNone(strings.Join(roles, ","))
}

func nodeAddress(n *corev1.Node, kind corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return none
}

func orUnknown(s string) string {
	if s == "" {
		return "<unknown>"
	}
	return s
}
