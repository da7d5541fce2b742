package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/barque/barque/apiserver/secureport"
	"github.com/barque/barque/clusterstatus/cis"
	"github.com/barque/barque/cmd/barque/node/options"
)

// hardenedFlags are the values that the profile cis gives to flags. A flag that this version, or an
// agent, does not have is left out. docs/hardening.md has the reasons.
var hardenedFlags = []struct{ name, value string }{
	{"anonymous-paths", strings.Join(secureport.OpenPaths, ",")},
	{"audit-log-maxage", "30"},
	{"audit-log-maxbackup", "10"},
	{"audit-log-maxsize", "100"},
	{"pod-security-default", "baseline"},
	{"profiling", "false"},
	{"service-account-extend-token-expiration", "false"},
}

// hardenedPlugins are the admission plugins that the profile adds.
var hardenedPlugins = []string{"DenyServiceExternalIPs", "EventRateLimit"}

// hardenedTaint keeps pods of users from servers.
const hardenedTaint = "node-role.kubernetes.io/control-plane:NoSchedule"

// hardenedKubelet are the fields of the kubelet's configuration that the profile sets. Files and
// flags override them.
func hardenedKubelet() map[string]any {
	return map[string]any{
		"seccompDefault": true, "podPidsLimit": 4096, "protectKernelDefaults": true, "eventRecordQPS": 50,
		"tlsCipherSuites": cis.StrongSuites(),
	}
}

// addProfileFlags adds the flags of the profile, and those of nodes that it sets.
func addProfileFlags(c *cobra.Command, f *nodeFlags) {
	c.Flags().StringVar(&f.options.Profile, "profile", "",
		"hardened defaults of other flags: cis, or none; a flag or file of yours overrides them. It is recorded with the cluster, and machines that join get it. Give it to each node of an existing cluster once, servers first (default: the recorded one)")
}

// addSecurityFlags adds flags of servers that the profile sets.
func addSecurityFlags(c *cobra.Command, o *options.Options) {
	flags := c.Flags()
	flags.StringSliceVar(&o.AnonymousPaths, "anonymous-paths", nil,
		"paths of the API that are served without credentials; other requests without credentials get 401; all is every path, as far as RBAC allows system:anonymous (default: all); give it to all servers")
	flags.StringVar(&o.Admission.PodSecurity, "pod-security-default", "",
		"Pod Security Standard that namespaces without a label enforce, except kube-system: privileged, baseline or restricted; a configuration of PodSecurity in --admission-control-config-file overrides it; give it to all servers")
}

// completePaths checks the paths that are served without credentials.
func completePaths(o *options.Options) error {
	if slices.Equal(o.AnonymousPaths, []string{"all"}) {
		o.AnonymousPaths = nil
	}
	for _, p := range o.AnonymousPaths {
		if !strings.HasPrefix(p, "/") {
			return fmt.Errorf("--anonymous-paths %q: want paths such as /livez, or all", p)
		}
	}
	return nil
}

// completeProfile finds the profile of this start, and applies it to the flags that the user has
// not given.
func (f *nodeFlags) completeProfile(c *cobra.Command) error {
	o := &f.options
	o.ProfileGiven = c.Flags().Changed("profile")
	if err := options.CheckProfile(o.Profile); err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	if !o.ProfileGiven {
		var err error
		if o.Profile, err = options.RecordedProfile(o.DataDir); err != nil {
			return err
		}
	}
	if o.Profile == options.NoProfile {
		o.Profile = ""
	}
	o.Settings.Profile = o.Profile
	if o.Profile == "" {
		return nil
	}
	f.kubelet.under = hardenedKubelet()
	for _, h := range hardenedFlags {
		flag := c.Flags().Lookup(h.name)
		if flag == nil || flag.Changed {
			continue
		}
		if err := flag.Value.Set(h.value); err != nil {
			return fmt.Errorf("profile %s: --%s: %w", o.Profile, h.name, err)
		}
	}
	if c.Flags().Lookup("enable-admission-plugins") == nil {
		return nil // an agent
	}
	for _, plugin := range hardenedPlugins {
		if !slices.Contains(o.Admission.Enable, plugin) && !slices.Contains(o.Admission.Disable, plugin) {
			o.Admission.Enable = append(o.Admission.Enable, plugin)
		}
	}
	if !c.Flags().Changed("node-taint") {
		o.Taints = append(o.Taints, hardenedTaint)
	}
	return nil
}
