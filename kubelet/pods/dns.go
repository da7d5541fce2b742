package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits that resolvers set.
const (
	maxNameservers = 3
	maxSearches    = 32
)

// dnsConfig is what a pod's resolv.conf says, by its dnsPolicy and dnsConfig.
func (k *Kit) dnsConfig(pod *v1.Pod) (*runtimeapi.DNSConfig, error) {
	config := &runtimeapi.DNSConfig{}
	policy := pod.Spec.DNSPolicy
	if policy == v1.DNSClusterFirst && pod.Spec.HostNetwork {
		policy = v1.DNSDefault
	}
	if (policy == v1.DNSClusterFirst || policy == v1.DNSClusterFirstWithHostNet || policy == "") && len(k.ClusterDNS) == 0 {
		policy = v1.DNSDefault // there is no cluster DNS to go to
	}
	switch policy {
	case v1.DNSNone:
	case v1.DNSDefault:
		host, err := hostResolver(k.ResolvConf)
		if err != nil {
			return nil, err
		}
		config = host
	default:
		config.Servers = slices.Clone(k.ClusterDNS)
		if k.ClusterDomain != "" {
			config.Searches = []string{
				pod.Namespace + ".svc." + k.ClusterDomain, "svc." + k.ClusterDomain, k.ClusterDomain,
			}
		}
		if host, err := hostResolver(k.ResolvConf); err == nil {
			config.Searches = append(config.Searches, host.Searches...)
		}
		config.Options = []string{"ndots:5"}
	}
	if own := pod.Spec.DNSConfig; own != nil {
		config.Servers = append(config.Servers, own.Nameservers...)
		config.Searches = append(config.Searches, own.Searches...)
		for _, option := range own.Options {
			config.Options = setOption(config.Options, option)
		}
	}
	config.Servers = firstOf(config.Servers, maxNameservers)
	config.Searches = firstOf(config.Searches, maxSearches)
	return config, nil
}

func setOption(options []string, o v1.PodDNSConfigOption) []string {
	text := o.Name
	if o.Value != nil && *o.Value != "" {
		text += ":" + *o.Value
	}
	for i, have := range options {
		if name, _, _ := strings.Cut(have, ":"); name == o.Name {
			options[i] = text
			return options
		}
	}
	return append(options, text)
}

// firstOf drops repeated entries and what is beyond limit.
func firstOf(list []string, limit int) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) && len(out) < limit {
			out = append(out, s)
		}
	}
	return out
}

func hostResolver(path string) (*runtimeapi.DNSConfig, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &runtimeapi.DNSConfig{}, nil // a machine without names has none to give
	}
	if err != nil {
		return nil, fmt.Errorf("read the node's resolver configuration: %w", err)
	}
	config := &runtimeapi.DNSConfig{}
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			config.Servers = append(config.Servers, fields[1])
		case "search":
			config.Searches = nil
			for _, s := range fields[1:] {
				if s != "." {
					config.Searches = append(config.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			config.Options = fields[1:]
		}
	}
	return config, nil
}

// hostsFile is the content of a pod's /etc/hosts.
func hostsFile(pod *v1.Pod, ips []string, hostname, domain string) string {
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		b.WriteString(ip + "\t")
		if domain != "" {
			b.WriteString(hostname + "." + domain + "\t")
		}
		b.WriteString(hostname + "\n")
	}
	writeAliases(&b, pod.Spec.HostAliases)
	return b.String()
}

// hostsOfHost is the host's own file with a pod's aliases added.
func hostsOfHost(content []byte, aliases []v1.HostAlias) string {
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file (host network).\n")
	b.Write(content)
	writeAliases(&b, aliases)
	return b.String()
}

func writeAliases(b *strings.Builder, aliases []v1.HostAlias) {
	if len(aliases) == 0 {
		return
	}
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range aliases {
		b.WriteString(a.IP + "\t" + strings.Join(a.Hostnames, "\t") + "\n")
	}
}

// hostname returns the name that a pod goes by inside, and its domain where it has one.
func (k *Kit) hostname(pod *v1.Pod) (name, domain string) {
	name = pod.Name
	if pod.Spec.HostnameOverride != nil {
		return *pod.Spec.HostnameOverride, ""
	}
	if pod.Spec.Hostname != "" {
		name = pod.Spec.Hostname
	}
	if len(name) > maxHostname {
		name = strings.TrimRight(name[:maxHostname], "-.")
	}
	if pod.Spec.Subdomain != "" {
		domain = pod.Spec.Subdomain + "." + pod.Namespace + ".svc." + k.ClusterDomain
	}
	if pod.Spec.HostNetwork {
		return k.NodeHostname, ""
	}
	if pod.Spec.SetHostnameAsFQDN != nil && *pod.Spec.SetHostnameAsFQDN && domain != "" {
		name = name + "." + domain
	}
	return name, domain
}

const maxHostname = 63 // the kernel's limit for a host name is 64 with the end
