package core

import (
	"context"
	"fmt"
	"net"
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
		Prepare:  prepareNode,
		Validate: validateNode,
		Warnings: nodeWarnings,
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
	// A node's capacity is allocatable unless the node reserves a part of it.
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	// podCIDR is the first of podCIDRs. Where they differ a client that knows only the former wins.
	switch spec := &n.Spec; {
	case spec.PodCIDR == "" && len(spec.PodCIDRs) > 0:
		spec.PodCIDR = spec.PodCIDRs[0]
	case spec.PodCIDR != "" && (len(spec.PodCIDRs) == 0 || spec.PodCIDRs[0] != spec.PodCIDR):
		spec.PodCIDRs = []string{spec.PodCIDR}
	}
}

// prepareNode drops fields that have been removed, and those of features that are off.
func prepareNode(_ context.Context, n, old *corev1.Node) {
	//lint:ignore SA1019 what has been removed is dropped
	if old == nil || old.Spec.ConfigSource == nil {
		n.Spec.ConfigSource = nil //lint:ignore SA1019 see above
	}
	if old == nil {
		n.Status.Config = nil
	}
	if old == nil || old.Spec.PodPreemptionPolicy == nil {
		n.Spec.PodPreemptionPolicy = nil
	}
}

func nodeWarnings(_ context.Context, n, _ *corev1.Node) []string {
	var warnings []string
	//lint:ignore SA1019 it is told that the field has been removed
	if n.Spec.ConfigSource != nil {
		warnings = append(warnings, "spec.configSource: the feature is removed")
	}
	if n.Spec.DoNotUseExternalID != "" {
		warnings = append(warnings, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, cidr := range n.Spec.PodCIDRs {
		warnings = append(warnings,
			utilvalidation.GetWarningsForCIDR(field.NewPath("spec", "podCIDRs").Index(i), cidr)...)
	}
	return warnings
}

func validateNode(_ context.Context, n, old *corev1.Node) field.ErrorList {
	var errs field.ErrorList
	// Clients expect this path in an error of a taint.
	errs = append(errs, validateTaints(n.Spec.Taints, field.NewPath("metadata", "taints"))...)
	errs = append(errs, validatePodCIDRs(n.Spec.PodCIDRs, field.NewPath("spec", "podCIDRs"))...)
	if swap := n.Status.NodeInfo.Swap; swap != nil && swap.Capacity != nil {
		errs = append(errs,
			validation.Positive(*swap.Capacity, field.NewPath("metadata", "nodeSwapStatus", "capacity"))...)
	}
	if old != nil {
		return append(errs, validateNodeUpdate(n, old)...)
	}
	errs = append(errs, validation.Meta(n, nil, false, validation.SubdomainName)...)
	return append(errs, validateNodeResources(&n.Status)...)
}

// validateNodeUpdate checks the fields that are immutable once set, in writes to its status, too.
func validateNodeUpdate(n, old *corev1.Node) field.ErrorList {
	errs := validation.Meta(n, old, false, validation.SubdomainName)
	errs = append(errs, validateNodeResources(&n.Status)...)
	seen := map[corev1.NodeAddress]bool{}
	for i, address := range n.Status.Addresses {
		if seen[address] {
			errs = append(errs, field.Duplicate(field.NewPath("status", "addresses").Index(i), address))
		}
		seen[address] = true
	}
	at := field.NewPath("spec")
	if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(n.Spec.PodCIDRs, old.Spec.PodCIDRs) {
		errs = append(errs,
			field.Forbidden(at.Child("podCIDRs"), `node updates may not change podCIDR except from "" to valid`))
	}
	switch was, is := old.Spec.ProviderID, n.Spec.ProviderID; {
	case was == "" || was == is:
	case is == "":
		errs = append(errs, field.Invalid(at.Child("providerID"), is, "field cannot be cleared once set"))
	default:
		errs = append(errs, field.Invalid(at.Child("providerID"), is, "field cannot be modified once set"))
	}
	if n.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		errs = append(errs, field.Forbidden(at.Child("externalID"), "may not be updated"))
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
		errs = append(errs, validation.Check(t.Key, at.Child("key"), utilvalidation.IsQualifiedName)...)
		if msgs := utilvalidation.IsValidLabelValue(t.Value); len(msgs) > 0 {
			errs = append(errs, field.Invalid(at.Child("value"), t.Value, strings.Join(msgs, ";")))
		}
		errs = append(errs, validation.Enum(t.Effect, at.Child("effect"),
			corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)...)
		if id := (identity{t.Key, t.Effect}); seen[id] {
			twice := field.Duplicate(at, t)
			twice.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, twice)
		} else {
			seen[id] = true
		}
	}
	return errs
}

func validatePodCIDRs(cidrs []string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, cidr := range cidrs {
		errs = append(errs, validation.CIDR(cidr, at.Index(i))...)
	}
	if len(cidrs) < 2 {
		return errs
	}
	is4 := func(cidr string) bool { ip, _, err := net.ParseCIDR(cidr); return err == nil && ip.To4() != nil }
	if len(errs) > 0 {
		return append(errs,
			field.InternalError(at,
				fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:%w", errs.ToAggregate())),
			field.Invalid(at, cidrs, "may specify no more than one CIDR for each IP family"))
	}
	if len(cidrs) > 2 || is4(cidrs[0]) == is4(cidrs[1]) {
		errs = append(errs, field.Invalid(at, cidrs, "may specify no more than one CIDR for each IP family"))
	}
	return errs
}

func validateNodeStatus(_ context.Context, n, old *corev1.Node) field.ErrorList {
	return validateNodeUpdate(n, old)
}

func validateNodeResources(s *corev1.NodeStatus) field.ErrorList {
	var errs field.ErrorList
	for _, list := range []struct {
		name      string
		resources corev1.ResourceList
	}{{"capacity", s.Capacity}, {"allocatable", s.Allocatable}} {
		for _, name := range validation.SortedResources(list.resources) {
			errs = append(errs,
				validation.Quantity(name, list.resources[name], field.NewPath("status", list.name, string(name)))...)
		}
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
	return resource.OrNone(strings.Join(roles, ","))
}

func nodeAddress(n *corev1.Node, kind corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return resource.None
}

func orUnknown(s string) string {
	if s == "" {
		return "<unknown>"
	}
	return s
}
