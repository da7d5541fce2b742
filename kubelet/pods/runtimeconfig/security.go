package runtimeconfig

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Paths of /proc and /sys that the runtime hides from an ordinary container.
var (
	maskedPaths = [...]string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	readonlyPaths = [...]string{
		"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
	}
)

// namespaces returns which namespaces a pod shares with the host and its containers
// with each other.
func namespaces(pod *v1.Pod) *runtimeapi.NamespaceOption {
	opt := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if pod.Spec.HostNetwork {
		opt.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		opt.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		opt.Pid = runtimeapi.NamespaceMode_NODE
	case isTrue(pod.Spec.ShareProcessNamespace):
		opt.Pid = runtimeapi.NamespaceMode_POD
	}
	return opt
}

func sandboxSecurity(pod *v1.Pod) *runtimeapi.LinuxSandboxSecurityContext {
	sc := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod),
		Privileged:       anyPrivileged(pod),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	own := pod.Spec.SecurityContext
	if own == nil {
		return sc
	}
	if own.RunAsUser != nil {
		sc.RunAsUser = &runtimeapi.Int64Value{Value: *own.RunAsUser}
		if own.RunAsGroup != nil {
			sc.RunAsGroup = &runtimeapi.Int64Value{Value: *own.RunAsGroup}
		}
	}
	sc.SupplementalGroups = podGroups(own)
	sc.SupplementalGroupsPolicy = groupsPolicy(own)
	sc.SelinuxOptions = selinux(own.SELinuxOptions)
	return sc
}

func anyPrivileged(pod *v1.Pod) bool {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && isTrue(sc.Privileged) {
				return true
			}
		}
	}
	return false
}

func podGroups(sc *v1.PodSecurityContext) []int64 {
	groups := append([]int64(nil), sc.SupplementalGroups...)
	if sc.FSGroup != nil {
		groups = append(groups, *sc.FSGroup)
	}
	return groups
}

func groupsPolicy(sc *v1.PodSecurityContext) runtimeapi.SupplementalGroupsPolicy {
	if p := sc.SupplementalGroupsPolicy; p != nil && *p == v1.SupplementalGroupsPolicyStrict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// containerSecurity merges the pod's security context with the container's, which wins. otherwise
// is the seccomp profile of containers without one.
func containerSecurity(
	pod *v1.Pod, c *v1.Container, target string, otherwise v1.SeccompProfileType,
) (*runtimeapi.LinuxContainerSecurityContext, error) {
	podSC, own := pod.Spec.SecurityContext, c.SecurityContext
	if podSC == nil {
		podSC = &v1.PodSecurityContext{}
	}
	if own == nil {
		own = &v1.SecurityContext{}
	}
	sc := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions:         namespaces(pod),
		Privileged:               isTrue(own.Privileged),
		ReadonlyRootfs:           isTrue(own.ReadOnlyRootFilesystem),
		SupplementalGroups:       podGroups(podSC),
		SupplementalGroupsPolicy: groupsPolicy(podSC),
		NoNewPrivs:               own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation,
	}
	if target != "" {
		sc.NamespaceOptions.Pid, sc.NamespaceOptions.TargetId = runtimeapi.NamespaceMode_TARGET, target
	}
	if user := firstSet(own.RunAsUser, podSC.RunAsUser); user != nil {
		sc.RunAsUser = &runtimeapi.Int64Value{Value: *user}
	}
	if group := firstSet(own.RunAsGroup, podSC.RunAsGroup); group != nil {
		sc.RunAsGroup = &runtimeapi.Int64Value{Value: *group}
	}
	if caps := own.Capabilities; caps != nil {
		sc.Capabilities = &runtimeapi.Capability{}
		for _, name := range caps.Add {
			sc.Capabilities.AddCapabilities = append(sc.Capabilities.AddCapabilities, string(name))
		}
		for _, name := range caps.Drop {
			sc.Capabilities.DropCapabilities = append(sc.Capabilities.DropCapabilities, string(name))
		}
	}
	sc.SelinuxOptions = selinux(own.SELinuxOptions)
	if sc.SelinuxOptions == nil {
		sc.SelinuxOptions = selinux(podSC.SELinuxOptions)
	}
	var err error
	if sc.Seccomp, err = seccomp(own.SeccompProfile, podSC.SeccompProfile, sc.Privileged, otherwise); err != nil {
		return nil, err
	}
	sc.Apparmor = apparmor(own.AppArmorProfile, podSC.AppArmorProfile)
	unmasked := own.ProcMount != nil && *own.ProcMount == v1.UnmaskedProcMount
	if !sc.Privileged && !unmasked {
		sc.MaskedPaths, sc.ReadonlyPaths = maskedPaths[:], readonlyPaths[:]
	}
	return sc, nil
}

func firstSet(values ...*int64) *int64 {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

func seccomp(
	own, pods *v1.SeccompProfile, privileged bool, otherwise v1.SeccompProfileType,
) (*runtimeapi.SecurityProfile, error) {
	profile := own
	if profile == nil {
		profile = pods
	}
	kind := otherwise
	switch {
	case privileged:
		kind = v1.SeccompProfileTypeUnconfined
	case profile != nil:
		kind = profile.Type
	}
	switch kind {
	case v1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case v1.SeccompProfileTypeLocalhost:
		if profile.LocalhostProfile == nil || *profile.LocalhostProfile == "" {
			return nil, &ConfigError{fmt.Errorf("seccompProfile of type Localhost names no localhostProfile")}
		}
		return &runtimeapi.SecurityProfile{
			ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *profile.LocalhostProfile}, nil
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
}

func apparmor(own, pods *v1.AppArmorProfile) *runtimeapi.SecurityProfile {
	profile := own
	if profile == nil {
		profile = pods
	}
	if profile == nil {
		return nil
	}
	switch profile.Type {
	case v1.AppArmorProfileTypeLocalhost:
		if profile.LocalhostProfile != nil {
			return &runtimeapi.SecurityProfile{
				ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *profile.LocalhostProfile}
		}
	case v1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

// mustNotBeRoot reports whether the container must not run as root, and its runAsUser, if any.
func mustNotBeRoot(pod *v1.Pod, c *v1.Container) (forbidden bool, user *int64) {
	if sc := pod.Spec.SecurityContext; sc != nil {
		forbidden, user = isTrue(sc.RunAsNonRoot), sc.RunAsUser
	}
	if sc := c.SecurityContext; sc != nil {
		if sc.RunAsNonRoot != nil {
			forbidden = *sc.RunAsNonRoot
		}
		user = firstSet(sc.RunAsUser, user)
	}
	return forbidden, user
}

// checkUser refuses to run as root where the pod forbids it. The image's user counts where the pod
// sets none.
func checkUser(pod *v1.Pod, c *v1.Container, image *runtimeapi.Image) error {
	forbidden, user := mustNotBeRoot(pod, c)
	if !forbidden {
		return nil
	}
	switch {
	case user != nil && *user == 0:
		return &ConfigError{
			fmt.Errorf("container's runAsUser breaks non-root policy (pod: %q, container: %s)", pod.Name, c.Name)}
	case user != nil:
		return nil
	case image != nil && image.Username != "":
		return &ConfigError{
			fmt.Errorf(
				"container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root (pod: %q, container: %s)", image.Username, pod.Name, c.Name)}
	case image == nil || image.Uid == nil || image.Uid.Value == 0:
		return &ConfigError{
			fmt.Errorf("container has runAsNonRoot and image will run as root (pod: %q, container: %s)", pod.Name,
				c.Name)}
	}
	return nil
}
