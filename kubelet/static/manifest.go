// Package static runs the pods whose manifests are files of the node, and mirrors them to the API
// server, so that users see them.
//
// A static pod needs no API server: its file is authoritative. Its UID changes with the file's
// content, so that a changed file makes another pod. Its mirror at the API server has the same name
// and another UID; it carries the status and decides nothing. A deleted mirror comes back; the pod
// ends when its file is removed.
//
// Source reads files. Mirrors keeps the objects at the API server.
package static

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// Annotations of static pods and of their mirrors.
const (
	annotationSource = "kubernetes.io/config.source"
	annotationSeen   = "kubernetes.io/config.seen"
	annotationHash   = "kubernetes.io/config.hash"
)

// Parse reads the manifest of a static pod. The pod's name is made of the manifest's
// and the node's.
func Parse(raw []byte, path, node string, now time.Time) (*v1.Pod, error) {
	pod := &v1.Pod{}
	if err := yaml.UnmarshalStrict(raw, pod); err != nil {
		return nil, err
	}
	if pod.Kind != "Pod" || pod.APIVersion != "v1" {
		return nil, fmt.Errorf("kind %q of %q: want kind: Pod and apiVersion: v1", pod.Kind, pod.APIVersion)
	}
	if pod.Name == "" || len(pod.Spec.Containers) == 0 {
		return nil, errors.New("want a name and at least one container")
	}
	pod.Name = strings.ToLower(pod.Name) + "-" + node
	if errs := validation.IsDNS1123Subdomain(pod.Name); len(errs) > 0 {
		return nil, fmt.Errorf("name %q: %s", pod.Name, errs[0])
	}
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	if what := refersTo(pod); what != "" {
		return nil, fmt.Errorf("static pods may not reference %s", what)
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\x00%s\x00", node, filepath.Clean(path))
	sum.Write(bytes.TrimSpace(raw))
	hash := hex.EncodeToString(sum.Sum(nil))[:32]
	pod.UID = types.UID(hash)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[annotationSource] = "file"
	pod.Annotations[annotationSeen] = now.Format(time.RFC3339Nano)
	pod.Annotations[annotationHash] = hash
	pod.Generation = 1
	pod.CreationTimestamp = metav1.NewTime(now)
	pod.Status = v1.PodStatus{Phase: v1.PodPending}
	pod.Spec.NodeName = node
	// No taint ends a static pod.
	pod.Spec.Tolerations = append(pod.Spec.Tolerations,
		v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute})
	complete(&pod.Spec)
	return pod, nil
}

// refersTo returns the objects of the API that a pod refers to. A static pod starts before any can
// be read.
func refersTo(pod *v1.Pod) string {
	switch {
	case pod.Spec.ServiceAccountName != "":
		return "service accounts"
	case len(pod.Spec.ImagePullSecrets) > 0:
		return "secrets"
	case len(pod.Spec.ResourceClaims) > 0:
		return "resource claims"
	case len(pod.Spec.EphemeralContainers) > 0:
		return "ephemeral containers"
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, from := range list[i].EnvFrom {
				if from.SecretRef != nil || from.ConfigMapRef != nil {
					return "secrets or config maps"
				}
			}
			for _, e := range list[i].Env {
				if e.ValueFrom != nil && (e.ValueFrom.SecretKeyRef != nil || e.ValueFrom.ConfigMapKeyRef != nil) {
					return "secrets or config maps"
				}
			}
		}
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.HostPath == nil && v.EmptyDir == nil && v.DownwardAPI == nil && v.Image == nil && v.NFS == nil {
			return fmt.Sprintf("objects by volume %q", v.Name)
		}
	}
	return ""
}

// complete sets the API server's defaults.
func complete(s *v1.PodSpec) {
	orDefault(&s.RestartPolicy, v1.RestartPolicyAlways)
	orDefault(&s.DNSPolicy, v1.DNSClusterFirst)
	orDefault(&s.SchedulerName, v1.DefaultSchedulerName)
	if s.SecurityContext == nil {
		s.SecurityContext = &v1.PodSecurityContext{}
	}
	if s.TerminationGracePeriodSeconds == nil {
		grace := int64(v1.DefaultTerminationGracePeriodSeconds)
		s.TerminationGracePeriodSeconds = &grace
	}
	links := v1.DefaultEnableServiceLinks
	if s.EnableServiceLinks == nil {
		s.EnableServiceLinks = &links
	}
	for _, list := range [][]v1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			completeContainer(&list[i], s.HostNetwork)
		}
	}
	for i := range s.Volumes {
		if s.Volumes[i].HostPath != nil && s.Volumes[i].HostPath.Type == nil {
			unset := v1.HostPathUnset
			s.Volumes[i].HostPath.Type = &unset
		}
	}
}

func completeContainer(c *v1.Container, hostNetwork bool) {
	orDefault(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	orDefault(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	for i := range c.Ports {
		orDefault(&c.Ports[i].Protocol, v1.ProtocolTCP)
		if hostNetwork && c.Ports[i].HostPort == 0 {
			c.Ports[i].HostPort = c.Ports[i].ContainerPort
		}
	}
	for name, limit := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[name]; !ok {
			if c.Resources.Requests == nil {
				c.Resources.Requests = v1.ResourceList{}
			}
			c.Resources.Requests[name] = limit
		}
	}
	for _, p := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p == nil {
			continue
		}
		orDefault(&p.TimeoutSeconds, 1)
		orDefault(&p.PeriodSeconds, 10)
		orDefault(&p.SuccessThreshold, 1)
		orDefault(&p.FailureThreshold, 3)
		if h := p.HTTPGet; h != nil {
			completeHTTP(h)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*v1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil && h.HTTPGet != nil {
				completeHTTP(h.HTTPGet)
			}
		}
	}
}

func completeHTTP(h *v1.HTTPGetAction) {
	orDefault(&h.Path, "/")
	orDefault(&h.Scheme, v1.URISchemeHTTP)
	if h.Port == (intstr.IntOrString{}) {
		h.Port = intstr.FromInt32(80)
	}
}

func orDefault[T comparable](v *T, other T) {
	var zero T
	if *v == zero {
		*v = other
	}
}
