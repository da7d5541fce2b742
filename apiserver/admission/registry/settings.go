package registry

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1alpha1 "k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	"k8s.io/pod-security-admission/api"
)

// Settings choose plugins and configure them, as flags of the server give them. The zero value is
// the default chain.
type Settings struct {
	// Enable and Disable name plugins; the order does not matter.
	Enable, Disable []string
	// ConfigFile is a file with an AdmissionConfiguration; "" means none.
	ConfigFile string
	// PodSecurity is the Pod Security Standard that namespaces without a label enforce, except
	// kube-system; "" is the library's default, privileged. ConfigFile overrides it.
	PodSecurity string
}

// Names are the plugins that can be enabled, in their order.
func Names() []string { return namesOf(func(p *plugin) bool { return p.create != nil }) }

// Defaults are the plugins that run unless they are disabled, in their order.
func Defaults() []string {
	return namesOf(func(p *plugin) bool { return p.create != nil && p.on })
}

// Running are the plugins that run with the settings, in their order.
func (s Settings) Running() []string { return namesOf(s.chosen) }

func namesOf(want func(*plugin) bool) []string {
	var names []string
	for _, p := range plugins() {
		if want(&p) {
			names = append(names, p.name)
		}
	}
	return names
}

// Check returns the faults of the settings. It reads the configuration file.
func (s Settings) Check() error {
	for _, flag := range []struct {
		name    string
		plugins []string
	}{{"--enable-admission-plugins", s.Enable}, {"--disable-admission-plugins", s.Disable}} {
		for _, name := range flag.plugins {
			if err := known(name); err != nil {
				return fmt.Errorf("%s: %w", flag.name, err)
			}
		}
	}
	for _, name := range s.Enable {
		if slices.Contains(s.Disable, name) {
			return fmt.Errorf(
				"%s is in --enable-admission-plugins and in --disable-admission-plugins: take it out of one", name)
		}
	}
	if s.PodSecurity != "" {
		if _, err := api.ParseLevel(s.PodSecurity); err != nil {
			return fmt.Errorf("--pod-security-default: %w", err)
		}
	}
	_, err := s.read()
	return err
}

func known(name string) error {
	if slices.Contains(Names(), name) {
		return nil
	}
	if slices.Contains(namesOf(func(*plugin) bool { return true }), name) {
		return fmt.Errorf("this version has no admission plugin %s; it has %s", name, strings.Join(Names(), ", "))
	}
	return fmt.Errorf("unknown admission plugin %q; there are %s", name, strings.Join(Names(), ", "))
}

// chosen reports whether a plugin is to run.
func (s Settings) chosen(p *plugin) bool {
	return p.create != nil && (slices.Contains(s.Enable, p.name) || p.on && !slices.Contains(s.Disable, p.name))
}

// fileConfigs are the configurations of plugins, by name. It implements admission.ConfigProvider.
type fileConfigs map[string][]byte

// ConfigFor implements admission.ConfigProvider.
func (c fileConfigs) ConfigFor(name string) (io.Reader, error) {
	if text, ok := c[name]; ok {
		return bytes.NewReader(text), nil
	}
	return nil, nil
}

// defaults are the configurations of plugins without a file.
func (s Settings) defaults() fileConfigs {
	all := fileConfigs{}
	if s.PodSecurity != "" {
		all["PodSecurity"] = fmt.Appendf(nil, podSecurity, s.PodSecurity)
	}
	if slices.Contains(s.Enable, "EventRateLimit") {
		all["EventRateLimit"] = []byte(eventRates)
	}
	return all
}

// podSecurity holds the namespaces of users to a standard. Warnings and audit annotations are of
// the same one: a stricter one would warn of nearly all pods.
const podSecurity = `apiVersion: pod-security.admission.config.k8s.io/v1
kind: PodSecurityConfiguration
defaults: {enforce: %[1]q, audit: %[1]q, warn: %[1]q}
exemptions: {namespaces: [kube-system]}
`

// eventRates bound the events of one object to the burst of a client's own correlator, and those of
// a server to a number that its store bears.
const eventRates = `apiVersion: eventratelimit.admission.k8s.io/v1alpha1
kind: Configuration
limits:
- {type: Server, qps: 5000, burst: 20000}
- {type: SourceAndObject, qps: 10, burst: 50, cacheSize: 4096}
`

// read reads the configuration file and the files that it names, which are relative to it.
func (s Settings) read() (fileConfigs, error) {
	all := s.defaults()
	if s.ConfigFile == "" {
		return all, nil
	}
	text, err := os.ReadFile(s.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("--admission-control-config-file: %w", err)
	}
	decoder, err := configDecoder()
	if err != nil {
		return nil, err
	}
	obj, err := runtime.Decode(decoder, text)
	if err != nil {
		return nil, fmt.Errorf("--admission-control-config-file %s: %w", s.ConfigFile, err)
	}
	config, ok := obj.(*apiserver.AdmissionConfiguration)
	if !ok {
		return nil, fmt.Errorf("--admission-control-config-file %s has a %T: want an AdmissionConfiguration of %s",
			s.ConfigFile, obj, apiserverv1.SchemeGroupVersion)
	}
	for _, p := range config.Plugins {
		switch {
		case p.Configuration != nil:
			all[p.Name] = p.Configuration.Raw
		case p.Path != "":
			path := p.Path
			if !filepath.IsAbs(path) {
				path = filepath.Join(filepath.Dir(s.ConfigFile), path)
			}
			if all[p.Name], err = os.ReadFile(path); err != nil {
				return nil,
					fmt.Errorf("--admission-control-config-file %s: configuration of %s: %w", s.ConfigFile, p.Name, err)
			}
		}
	}
	return all, nil
}

func configDecoder() (runtime.Decoder, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		apiserver.AddToScheme, apiserverv1alpha1.AddToScheme, apiserverv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), nil
}
