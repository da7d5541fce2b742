package runtimeconfig

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/internal/resolvconf"
)

// Limits that resolvers set, and upstream's kubelet keeps to.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048 // of all search paths, with the spaces between them
	maxSearchPath  = 253  // some resolvers end the process over a longer one
	maxNodename    = 64   // the kernel's, for a machine's name
)

// Warning is a warning about a pod's resolver configuration.
type Warning struct{ Reason, Message string }

// Upstream's reasons.
const (
	eventDNSForming = "DNSConfigForming"
	eventDNSMissing = "MissingClusterDNS"
)

// DNSWarnings returns the warnings about a pod's resolver configuration.
func (b *Builder) DNSWarnings(pod *v1.Pod) []Warning {
	_, warnings, err := b.formDNS(pod)
	if err != nil {
		return nil // the sandbox fails for the same reason, which is shown
	}
	return warnings
}

// dnsConfig returns a pod's resolv.conf by its dnsPolicy and dnsConfig.
func (b *Builder) dnsConfig(pod *v1.Pod) (*runtimeapi.DNSConfig, error) {
	config, _, err := b.formDNS(pod)
	return config, err
}

func (b *Builder) formDNS(pod *v1.Pod) (*runtimeapi.DNSConfig, []Warning, error) {
	config := &runtimeapi.DNSConfig{}
	var warnings []Warning
	policy := pod.Spec.DNSPolicy
	if policy == v1.DNSClusterFirst && pod.Spec.HostNetwork {
		policy = v1.DNSDefault
	}
	cluster := policy != v1.DNSNone && policy != v1.DNSDefault
	if cluster && len(b.ClusterDNS) == 0 {
		warnings = append(warnings, Warning{eventDNSMissing, fmt.Sprintf(
			"pod: %q. kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.",
			pod.Name+"_"+pod.Namespace+"("+string(pod.UID)+")", v1.DNSClusterFirst, v1.DNSDefault)})
		cluster, policy = false, v1.DNSDefault
	}
	if policy != v1.DNSNone {
		host, err := resolvconf.Read(b.ResolvConf)
		if err != nil {
			return nil, nil, err
		}
		config = &runtimeapi.DNSConfig{Servers: host.Nameservers, Searches: host.Searches, Options: host.Options}
	}
	if cluster {
		config.Servers = slices.Clone(b.ClusterDNS)
		if b.ClusterDomain != "" {
			own := []string{pod.Namespace + ".svc." + b.ClusterDomain, "svc." + b.ClusterDomain, b.ClusterDomain}
			config.Searches = distinct(append(own, config.Searches...))
		}
		config.Options = []string{"ndots:5"}
	}
	if own := pod.Spec.DNSConfig; own != nil {
		config.Servers = distinct(append(config.Servers, own.Nameservers...))
		config.Searches = distinct(append(config.Searches, own.Searches...))
		for _, option := range own.Options {
			config.Options = resolvconf.SetOption(config.Options, optionText(option))
		}
	}
	if !pod.Spec.HostNetwork && resolvconf.OnLoopback(config.Servers) {
		warnings = append(warnings,
			Warning{eventDNSForming,
				fmt.Sprintf("All nameservers (%s) are on the node's loopback, which this pod does not reach: "+
					"use dnsPolicy ClusterFirst or dnsConfig, or name other servers in the node's %s",
					strings.Join(config.Servers, " "), b.ResolvConf)})
	}
	return config, append(warnings, limitDNS(config)...), nil
}

// limitDNS cuts a configuration to the limits, with warnings in upstream's words.
func limitDNS(config *runtimeapi.DNSConfig) []Warning {
	var warnings []Warning
	if len(config.Servers) > maxNameservers {
		config.Servers = config.Servers[:maxNameservers]
		warnings = append(warnings,
			Warning{eventDNSForming,
				"Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " +
					strings.Join(config.Servers, " ")})
	}
	var fit []string
	chars := -1 // the first one has no space before it
	for i, search := range config.Searches {
		if i == maxSearches {
			break
		}
		if len(search) > maxSearchPath {
			continue
		}
		if chars += 1 + len(search); chars > maxSearchChars {
			break
		}
		fit = append(fit, search)
	}
	if len(fit) < len(config.Searches) {
		warnings = append(warnings,
			Warning{eventDNSForming,
				"Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " +
					strings.Join(fit, " ")})
	}
	config.Searches = fit
	return warnings
}

func optionText(o v1.PodDNSConfigOption) string {
	if o.Value != nil && *o.Value != "" {
		return o.Name + ":" + *o.Value
	}
	return o.Name
}

// distinct drops repeated entries.
func distinct(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
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

// hostname returns the pod's own hostname, and its domain if it has one.
func (b *Builder) hostname(pod *v1.Pod) (name, domain string) {
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
		domain = pod.Spec.Subdomain + "." + pod.Namespace + ".svc." + b.ClusterDomain
	}
	if pod.Spec.HostNetwork {
		return b.NodeHostname, ""
	}
	return name, domain
}

// nodename is the kernel's name of a pod's machine. A fully qualified name that is too long is an
// error: cut, it could be the name of another machine.
func (b *Builder) nodename(pod *v1.Pod) (string, error) {
	name, domain := b.hostname(pod)
	if !isTrue(pod.Spec.SetHostnameAsFQDN) || domain == "" {
		return name, nil
	}
	full := name + "." + domain
	if len(full) > maxNodename {
		return "",
			fmt.Errorf(
				"failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)",
				full, maxNodename, len(full))
	}
	return full, nil
}

const maxHostname = 63 // a DNS label's
