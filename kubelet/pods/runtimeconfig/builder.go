package runtimeconfig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cgroups"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/podinfo"
	"github.com/barque/barque/kubelet/pods/lifecycle"
	"github.com/barque/barque/kubelet/pods/podlogs"
	"github.com/barque/barque/kubelet/volumes"
)

// Volumes is the interface of configurations to package volumes.
type Volumes interface {
	SubPath(uid types.UID, volume, root, container string, index int, path string) (string, error)
	PodDir(uid types.UID) string
	// Relabels reports whether the runtime may give a volume the SELinux label of the pod.
	Relabels(uid types.UID, volume string) bool
}

// Cgroups is the interface of sandboxes to package cgroups.
type Cgroups interface {
	Parent(pod *v1.Pod) string
}

// Devices is the interface of containers to package dra.
type Devices interface {
	// Devices returns the CDI names of the devices that a container gets.
	Devices(pod *v1.Pod, container *v1.Container) []string
}

// Builder makes the configurations of sandboxes and containers.
type Builder struct {
	Volumes Volumes
	Cgroups Cgroups
	Objects volumes.Objects
	Devices Devices // nil when there are none
	// Services lists the services for the environment of a namespace's pods, the API's
	// own among them.
	Services func(namespace string) []*v1.Service

	Logs          *podlogs.Dirs
	ClusterDNS    []string
	ClusterDomain string
	ResolvConf    string
	NodeHostname  string
	Allocatable   func() v1.ResourceList
	MemoryBytes   int64 // of the machine
	LowestOOM     int64 // the lowest oom_score_adj that may be asked for
	// SeccompDefault gives containers without a seccomp profile the runtime's default one.
	SeccompDefault bool
}

func podLabels(pod *v1.Pod) map[string]string {
	return map[string]string{
		cri.LabelPodName: pod.Name, cri.LabelPodNamespace: pod.Namespace, cri.LabelPodUID: string(pod.UID),
	}
}

// unsupported refuses a pod with a form of isolation that this node does not provide: running it
// without would be worse than not running it.
func unsupported(pod *v1.Pod) error {
	switch {
	case pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers:
		return errors.New(
			"hostUsers: false is not supported by this node; leave it out to run without a user namespace")
	case pod.Spec.RuntimeClassName != nil && *pod.Spec.RuntimeClassName != "":
		return fmt.Errorf(
			"runtimeClassName %q: this node has no runtime classes; leave it out to use the default runtime",
			*pod.Spec.RuntimeClassName)
	}
	return nil
}

// Sandbox is the configuration of a pod's sandbox.
func (b *Builder) Sandbox(pod *v1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, error) {
	if err := unsupported(pod); err != nil {
		return nil, err
	}
	dns, err := b.dnsConfig(pod)
	if err != nil {
		return nil, err
	}
	name, err := b.nodename(pod)
	if err != nil {
		return nil, err
	}
	labels := podLabels(pod)
	for key, value := range pod.Labels {
		if _, taken := labels[key]; !taken {
			labels[key] = value
		}
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		LogDirectory: b.Logs.PodDir(pod),
		DnsConfig:    dns,
		Labels:       labels,
		Annotations:  pod.Annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    b.Cgroups.Parent(pod),
			SecurityContext: sandboxSecurity(pod),
			Sysctls:         sysctls(pod),
		},
	}
	if !pod.Spec.HostNetwork {
		config.Hostname = name
		config.PortMappings = portMappings(pod)
	}
	return config, nil
}

func sysctls(pod *v1.Pod) map[string]string {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	set := map[string]string{}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		set[s.Name] = s.Value
	}
	return set
}

func portMappings(pod *v1.Pod) []*runtimeapi.PortMapping {
	var list []*runtimeapi.PortMapping
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, p := range containers[i].Ports {
				if p.HostPort == 0 {
					continue
				}
				protocol := runtimeapi.Protocol_TCP
				switch p.Protocol {
				case v1.ProtocolUDP:
					protocol = runtimeapi.Protocol_UDP
				case v1.ProtocolSCTP:
					protocol = runtimeapi.Protocol_SCTP
				}
				list = append(list, &runtimeapi.PortMapping{
					Protocol: protocol, ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP})
			}
		}
	}
	return list
}

// Input is the input, besides the pod, of a container's configuration.
type Input struct {
	lifecycle.Start
	IPs    []string
	Paths  map[string]string // of volumes on the host, by name
	Image  *runtimeapi.Image
	Target string // the container whose processes an ephemeral container sees
}

// seccomp is the profile of containers without one.
func (b *Builder) seccomp() v1.SeccompProfileType {
	if b.SeccompDefault {
		return v1.SeccompProfileTypeRuntimeDefault
	}
	return v1.SeccompProfileTypeUnconfined
}

// Container returns the configuration of one container. It writes the files that
// the container mounts.
func (b *Builder) Container(ctx context.Context, pod *v1.Pod, in Input) (*runtimeapi.ContainerConfig, error) {
	c := in.Start.Container
	pod = withIPs(pod, in.IPs) // the variables may ask for addresses that no client has seen yet
	if err := checkUser(pod, c, in.Image); err != nil {
		return nil, err
	}
	env, err := b.environment(ctx, pod, c, in.Paths)
	if err != nil {
		return nil, err
	}
	security, err := containerSecurity(pod, c, in.Target, b.seccomp())
	if err != nil {
		return nil, err
	}
	lookup := func(name string) (string, bool) {
		for _, kv := range env {
			if kv.Key == name {
				return string(kv.Value), true
			}
		}
		return "", false
	}
	mounts, err := b.mounts(pod, c, in, lookup)
	if err != nil {
		return nil, err
	}
	blocks, err := devices(pod, c, in.Paths)
	if err != nil {
		return nil, err
	}
	termination, err := b.terminationFile(pod, c, in.Attempt)
	if err != nil {
		return nil, err
	}
	annotations := map[string]string{
		cri.AnnotationImage: c.Image, cri.AnnotationGrace: strconv.FormatInt(podinfo.GracePeriod(pod), 10),
		cri.AnnotationMemoryRequest: strconv.FormatInt(c.Resources.Requests.Memory().Value(), 10),
	}
	if in.Round > 0 {
		annotations[cri.AnnotationRound] = strconv.FormatUint(uint64(in.Round), 10)
	}
	if termination != "" {
		mounts = append(mounts,
			&runtimeapi.Mount{HostPath: termination, ContainerPath: c.TerminationMessagePath, SelinuxRelabel: true})
		annotations[cri.AnnotationTerminationFile] = termination
		annotations[cri.AnnotationTerminationPolicy] = string(c.TerminationMessagePolicy)
	}
	labels := podLabels(pod)
	labels[cri.LabelContainerName] = c.Name
	if err := os.MkdirAll(filepath.Join(b.Logs.PodDir(pod), c.Name), 0o755); err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: in.Attempt},
		Image:       &runtimeapi.ImageSpec{Image: in.ImageRef, UserSpecifiedImage: c.Image},
		Command:     expandAll(c.Command, lookup),
		Args:        expandAll(c.Args, lookup),
		WorkingDir:  c.WorkingDir,
		Envs:        env,
		Mounts:      mounts,
		Devices:     blocks,
		Labels:      labels,
		Annotations: annotations,
		LogPath:     podlogs.PathInPod(c.Name, in.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		StopSignal:  stopSignal(c),
		CDIDevices:  b.devices(pod, c),
		Linux:       &runtimeapi.LinuxContainerConfig{Resources: b.resources(pod, c), SecurityContext: security},
	}, nil
}

func (b *Builder) devices(pod *v1.Pod, c *v1.Container) (list []*runtimeapi.CDIDevice) {
	if b.Devices == nil {
		return nil
	}
	for _, name := range b.Devices.Devices(pod, c) {
		list = append(list, &runtimeapi.CDIDevice{Name: name})
	}
	return list
}

func withIPs(pod *v1.Pod, ips []string) *v1.Pod {
	if len(ips) == 0 || pod.Status.PodIP != "" {
		return pod
	}
	copied := *pod
	copied.Status.PodIP = ips[0]
	copied.Status.PodIPs = nil
	for _, ip := range ips {
		copied.Status.PodIPs = append(copied.Status.PodIPs, v1.PodIP{IP: ip})
	}
	return &copied
}

func expandAll(list []string, lookup func(string) (string, bool)) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = expand(s, lookup)
	}
	return out
}

func (b *Builder) resources(pod *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	r := lifecycle.LimitsOf(pod, c).Resources()
	r.OomScoreAdj = max(cgroups.OOMScoreAdj(pod, c, b.MemoryBytes), b.LowestOOM)
	return r
}

func (b *Builder) mounts(
	pod *v1.Pod, c *v1.Container, in Input, lookup func(string) (string, bool),
) ([]*runtimeapi.Mount, error) {
	var list []*runtimeapi.Mount
	hasHosts := false
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		host, ok := in.Paths[m.Name]
		if !ok {
			return nil, &ConfigError{fmt.Errorf("volumeMount %q: the pod has no such volume", m.Name)}
		}
		sub := m.SubPath
		if m.SubPathExpr != "" {
			sub = expand(m.SubPathExpr, lookup)
		}
		if ofImage(pod, m.Name) {
			list = append(list, &runtimeapi.Mount{
				ContainerPath: absolute(m.MountPath), Readonly: true, Propagation: propagation(m.MountPropagation),
				Image: &runtimeapi.ImageSpec{Image: host}, ImageSubPath: sub,
			})
			continue
		}
		if sub != "" {
			var err error
			if host, err = b.Volumes.SubPath(pod.UID, m.Name, host, c.Name, i, sub); err != nil {
				return nil, &ConfigError{err}
			}
		}
		hasHosts = hasHosts || filepath.Clean(m.MountPath) == "/etc/hosts"
		list = append(list, &runtimeapi.Mount{
			HostPath: host, ContainerPath: absolute(m.MountPath), Readonly: m.ReadOnly || readOnly(pod, m.Name),
			SelinuxRelabel:    b.Volumes.Relabels(pod.UID, m.Name),
			Propagation:       propagation(m.MountPropagation),
			RecursiveReadOnly: m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled,
		})
	}
	if !hasHosts && (pod.Spec.HostNetwork || len(in.IPs) > 0) {
		hosts, err := b.writeHosts(pod, in.IPs)
		if err != nil {
			return nil, err
		}
		list = append(list, &runtimeapi.Mount{HostPath: hosts, ContainerPath: "/etc/hosts", SelinuxRelabel: true})
	}
	return list, nil
}

func absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return "/" + path
}

func propagation(mode *v1.MountPropagationMode) runtimeapi.MountPropagation {
	if mode != nil {
		switch *mode {
		case v1.MountPropagationBidirectional:
			return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
		case v1.MountPropagationHostToContainer:
			return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		}
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}

// writeHosts writes the pod's /etc/hosts. A pod on the host's network has the host's own, with its
// aliases.
func (b *Builder) writeHosts(pod *v1.Pod, ips []string) (string, error) {
	name, domain := b.hostname(pod)
	content := hostsFile(pod, ips, name, domain)
	if pod.Spec.HostNetwork {
		host, err := os.ReadFile("/etc/hosts")
		if err != nil {
			return "", err
		}
		content = hostsOfHost(host, pod.Spec.HostAliases)
	}
	path := filepath.Join(b.Volumes.PodDir(pod.UID), "etc-hosts")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, []byte(content), 0o644)
}

// terminationFile creates the empty file for a container's termination message.
func (b *Builder) terminationFile(pod *v1.Pod, c *v1.Container, attempt uint32) (string, error) {
	if c.TerminationMessagePath == "" {
		return "", nil
	}
	dir := filepath.Join(b.Volumes.PodDir(pod.UID), "containers", c.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	path := filepath.Join(dir, strconv.Itoa(int(attempt))+".termination")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o666)
	if err != nil {
		return "", err
	}
	if err := f.Chmod(0o666); err != nil { // any user may write it, whatever our umask
		f.Close()
		return "", err
	}
	return path, f.Close()
}

// stopSignal translates a stop signal to the runtime's enumeration.
func stopSignal(c *v1.Container) runtimeapi.Signal {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return 0 // the image's own, or SIGTERM
	}
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(*c.Lifecycle.StopSignal))
	return runtimeapi.Signal(runtimeapi.Signal_value[name])
}
