package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/node/options"
)

// optionsBy are the options of a node by its arguments.
func optionsBy(t *testing.T, role string, args ...string) (options.Options, error) {
	t.Helper()
	c := &cobra.Command{Use: role}
	f := addNodeFlags(c)
	if role == roleServer {
		addServerFlags(c, f)
	} else {
		f.options.APIPort = defaultAPIPort
	}
	if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--data-dir") }) {
		args = append(args, "--data-dir="+t.TempDir())
	}
	if err := c.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return f.complete(c)
}

// TestProfileNames: each flag of the profile is a server's, so that none is misspelt.
func TestProfileNames(t *testing.T) {
	flags := serverCommand().Flags()
	for _, h := range hardenedFlags {
		if flags.Lookup(h.name) == nil {
			t.Errorf("no server has --%s", h.name)
		}
	}
}

// TestProfileSets: the profile's values count, on a server and on an agent.
func TestProfileSets(t *testing.T) {
	o, err := optionsBy(t, roleServer, "--profile=cis")
	if err != nil {
		t.Fatal(err)
	}
	if o.Profile != options.ProfileCIS || !o.ProfileGiven || o.Settings.Profile != options.ProfileCIS ||
		o.Tokens.Extend || o.Admission.PodSecurity != "baseline" ||
		!slices.Contains(o.AnonymousPaths, "/readyz") || !slices.Equal(o.Admission.Enable, hardenedPlugins) ||
		!slices.Equal(o.Taints, []string{hardenedTaint}) {
		t.Errorf("%+v", o)
	}
	if o.Flags["service-account-extend-token-expiration"] != "false" || o.Flags["pod-security-default"] != "baseline" {
		t.Errorf("the report has %v", o.Flags)
	}
	agent, err := optionsBy(t, roleAgent, "--profile=cis")
	if err != nil || len(agent.Taints) > 0 {
		t.Errorf("%v, taints %v", err, agent.Taints)
	}
	for _, k := range []options.Options{o, agent} {
		if c := k.Kubelet; !*c.SeccompDefault || *c.PodPidsLimit != 4096 || !c.ProtectKernelDefaults ||
			len(c.TLSCipherSuites) == 0 {
			t.Errorf("the kubelet has %+v", c)
		}
	}
}

// TestProfileYields: flags and files of the operator override the profile.
func TestProfileYields(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file,
		[]byte("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\npodPidsLimit: 99\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	o, err := optionsBy(t, roleServer, "--profile=cis", "--service-account-extend-token-expiration=true",
		"--pod-security-default=restricted", "--anonymous-paths=/readyz",
		"--disable-admission-plugins=EventRateLimit", "--enable-admission-plugins=AlwaysPullImages",
		"--node-taint=none", "--kubelet-config="+file, "--protect-kernel-defaults=false")
	if err != nil {
		t.Fatal(err)
	}
	if !o.Tokens.Extend || o.Admission.PodSecurity != "restricted" ||
		!slices.Equal(o.AnonymousPaths, []string{"/readyz"}) ||
		!slices.Equal(o.Admission.Enable, []string{"AlwaysPullImages", "DenyServiceExternalIPs"}) ||
		!slices.Equal(o.Taints, []string{"none"}) {
		t.Errorf("%+v", o)
	}
	if c := o.Kubelet; *c.PodPidsLimit != 99 || c.ProtectKernelDefaults || !*c.SeccompDefault {
		t.Errorf("the kubelet has %+v", c)
	}
}

// TestNoProfile: nothing changes without it, and none is the way back.
func TestNoProfile(t *testing.T) {
	for _, args := range [][]string{nil, {"--profile=none"}} {
		o, err := optionsBy(t, roleServer, args...)
		if err != nil || o.Profile != "" || o.Settings.Profile != "" || !o.Tokens.Extend ||
			o.Admission.PodSecurity != "" || len(o.AnonymousPaths)+len(o.Admission.Enable)+len(o.Taints) > 0 ||
			*o.Kubelet.SeccompDefault || o.ProfileGiven != (args != nil) {
			t.Errorf("%v: %v %+v", args, err, o)
		}
	}
	if o, err := optionsBy(t, roleServer, "--profile=cis", "--anonymous-paths=all"); err != nil ||
		len(o.AnonymousPaths) > 0 {
		t.Errorf("all paths: %v %v", o.AnonymousPaths, err)
	}
	if _, err := optionsBy(t, roleServer, "--anonymous-paths=livez"); err == nil ||
		!strings.Contains(err.Error(), `--anonymous-paths "livez": want paths`) {
		t.Errorf("%v", err)
	}
	if _, err := optionsBy(t, roleServer, "--profile=stig"); err == nil ||
		!strings.Contains(err.Error(), `--profile: unknown profile "stig": want cis or none`) {
		t.Errorf("%v", err)
	}
}

// TestFlagsWithoutSecrets: the report of a server has no token.
func TestFlagsWithoutSecrets(t *testing.T) {
	o, err := optionsBy(t, roleServer, "--join=https://10.0.0.1:6443", "--token=b2.secret")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range o.Flags {
		if strings.Contains(value, "secret") {
			t.Errorf("--%s is in the report: %s", name, value)
		}
	}
}
