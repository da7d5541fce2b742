package admission

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// safeSysctls are those that a pod may set: they are namespaced and cost other pods nothing.
var safeSysctls = [...]string{
	"kernel.shm_rmid_forced",
	"net.ipv4.ip_local_port_range",
	"net.ipv4.ip_local_reserved_ports",
	"net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ping_group_range",
	"net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes",
	"net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_rmem",
	"net.ipv4.tcp_syncookies",
	"net.ipv4.tcp_wmem",
}

// namespaced maps prefixes of sysctls to the namespace in which the kernel keeps them.
var namespaced = [...]struct{ prefix, namespace string }{
	{"kernel.sem", "ipc"}, {"kernel.shm", "ipc"}, {"kernel.msg", "ipc"}, {"fs.mqueue.", "ipc"}, {"net.", "net"},
}

// namespaceOf returns the namespace of a sysctl, or of a prefix; "" for the host's own.
func namespaceOf(name string) string {
	for _, group := range namespaced {
		if name == group.prefix || strings.HasPrefix(name, group.prefix) {
			return group.namespace
		}
	}
	return ""
}

// sysctlName writes a sysctl with dots. A name whose first separator is a slash has dots of its own
// between slashes, such as net/ipv4/conf/eth0.100/forwarding.
func sysctlName(name string) string {
	at := strings.IndexAny(name, "./")
	if at < 0 || name[at] == '.' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
}

// ValidateUnsafeSysctls checks a list of sysctls to allow.
func ValidateUnsafeSysctls(patterns []string) error {
	for _, pattern := range patterns {
		name := strings.TrimSuffix(sysctlName(pattern), "*")
		if name == "" || strings.Contains(name, "*") {
			return fmt.Errorf("unsafe sysctl %q: want a name, or a prefix that ends in .*", pattern)
		}
		if namespaceOf(name) == "" {
			return fmt.Errorf("unsafe sysctl %q: the kernel does not keep it apart for each pod; "+
				"want one below net., fs.mqueue., kernel.msg, kernel.sem or kernel.shm", pattern)
		}
	}
	return nil
}

// forbiddenSysctls refuses sysctls that are neither safe nor allowed, and those of namespaces that
// the pod shares with the host.
func forbiddenSysctls(in *Input) *Refusal {
	if in.Pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range in.Pod.Spec.SecurityContext.Sysctls {
		if problem := forbidden(&in.Pod.Spec, sysctlName(s.Name), in.UnsafeSysctls); problem != "" {
			return &Refusal{Reason: "SysctlForbidden", Message: fmt.Sprintf("forbidden sysctl: %q %s", s.Name, problem)}
		}
	}
	return nil
}

func forbidden(spec *v1.PodSpec, name string, allowed []string) string {
	safe := slices.Contains(safeSysctls[:], name)
	if !safe && !slices.ContainsFunc(allowed, func(pattern string) bool {
		pattern = sysctlName(pattern)
		prefix, many := strings.CutSuffix(pattern, "*")
		return pattern == name || many && strings.HasPrefix(name, prefix)
	}) {
		return "not allowlisted"
	}
	switch namespaceOf(name) {
	case "net":
		if spec.HostNetwork {
			return "not allowed with host net enabled"
		}
	case "ipc":
		if spec.HostIPC {
			return "not allowed with host ipc enabled"
		}
	}
	return ""
}
