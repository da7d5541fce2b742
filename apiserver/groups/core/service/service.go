package service

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/barque/barque/apiserver/resource"
)

// Resource declares services.
func Resource() resource.Resource {
	return &resource.Kind[corev1.Service]{
		GroupVersion: corev1.SchemeGroupVersion,
		Name:         "services",
		Singular:     "service",
		ShortNames:   []string{"svc"},
		Categories:   []string{"all"},
		List:         &corev1.ServiceList{},
		Prefix:       "services/specs",
		Default:      defaultService,
		Prepare:      prepareService,
		Validate:     validateService,
		Warnings:     serviceWarnings,
		Status: &resource.Status[corev1.Service]{Validate: validateServiceStatus,
			Warnings: serviceStatusWarnings},

		CreateOnUpdate: true,
		ReturnDeleted:  true,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Type", "string", "How the service is exposed."),
			resource.Column("Cluster-IP", "string", "Address of the service inside of the cluster."),
			resource.Column("External-IP", "string", "Addresses of the service outside of the cluster."),
			resource.Column("Port(s)", "string", "Ports of the service, with their node ports."),
			resource.Age(),
			resource.WideColumn("Selector", "string", "Labels of the pods that serve."),
		},
		Row: func(s *corev1.Service, now time.Time) []any {
			return []any{
				s.Name,
				string(s.Spec.Type),
				resource.OrNone(s.Spec.ClusterIP),
				externalIPs(s),
				servicePorts(s.Spec.Ports),
				resource.Since(s.CreationTimestamp, now),
				resource.FormatLabels(s.Spec.Selector),
			}
		},
		Fields: func(s *corev1.Service) fields.Set {
			return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
		},
	}
}

// sessionSeconds is how long a client keeps its endpoint.
const sessionSeconds = 3 * 60 * 60

func defaultService(s *corev1.Service) {
	spec := &s.Spec
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	if spec.SessionAffinity == corev1.ServiceAffinityNone {
		spec.SessionAffinityConfig = nil
	}
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		if c := spec.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			seconds := int32(sessionSeconds)
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
		}
	}
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if externallyAccessible(spec) && spec.ExternalTrafficPolicy == "" {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	if hasClusterIP(spec.Type) && spec.InternalTrafficPolicy == nil {
		policy := corev1.ServiceInternalTrafficPolicyCluster
		spec.InternalTrafficPolicy = &policy
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		if spec.AllocateLoadBalancerNodePorts == nil {
			allocate := true
			spec.AllocateLoadBalancerNodePorts = &allocate
		}
		for i := range s.Status.LoadBalancer.Ingress {
			if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" && in.IPMode == nil {
				mode := corev1.LoadBalancerIPModeVIP
				in.IPMode = &mode
			}
		}
	}
}

// hasClusterIP reports whether services of the type have an address in the cluster, or
// are headless.
func hasClusterIP(t corev1.ServiceType) bool {
	return t == corev1.ServiceTypeClusterIP || hasNodePorts(t)
}

func hasNodePorts(t corev1.ServiceType) bool {
	return t == corev1.ServiceTypeNodePort || t == corev1.ServiceTypeLoadBalancer
}

func externallyAccessible(spec *corev1.ServiceSpec) bool {
	return hasNodePorts(spec.Type) || (spec.Type == corev1.ServiceTypeClusterIP && len(spec.ExternalIPs) > 0)
}

func externalIPs(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return resource.OrNone(s.Spec.ExternalName)
	case corev1.ServiceTypeLoadBalancer:
		ips := slices.Clone(s.Spec.ExternalIPs)
		for _, in := range s.Status.LoadBalancer.Ingress {
			if in.IP != "" {
				ips = append(ips, in.IP)
			} else if in.Hostname != "" {
				ips = append(ips, in.Hostname)
			}
		}
		if len(ips) == 0 {
			return "<pending>"
		}
		slices.Sort(ips)
		return strings.Join(slices.Compact(ips), ",")
	}
	return resource.OrNone(strings.Join(s.Spec.ExternalIPs, ","))
}

func servicePorts(ports []corev1.ServicePort) string {
	out := make([]string, len(ports))
	for i, p := range ports {
		if p.NodePort != 0 {
			out[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		} else {
			out[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		}
	}
	return resource.OrNone(strings.Join(out, ","))
}
