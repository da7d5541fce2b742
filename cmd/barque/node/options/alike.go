package options

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/pod-security-admission/api"

	"github.com/barque/barque/apiserver/configfile"
)

// AccountIssuer is the issuer of the tokens of service accounts.
func (s Settings) AccountIssuer() string { return "https://kubernetes.default.svc." + s.Domain }

// alikeDefaults are the defaults of flags that must be the same on all servers, where "" is none.
var alikeDefaults = map[string]string{
	"--pod-security-default": string(api.LevelPrivileged), "--tls-min-version": "VersionTLS12", "--profiling": "true",
	"--anonymous-auth": "true",
}

// Alike are the flags that must be the same on all servers. A flag at its default is as none.
func (o *Options) Alike() []configfile.State {
	states := o.Switches.Files()
	if o.Profile != "" {
		states = append(states, configfile.State{Flag: "--profile", Hash: o.Profile})
	}
	texts := map[string]string{"--pod-security-default": o.Admission.PodSecurity,
		"--tls-min-version": o.Serving.TLS.MinVersion,
		"--cloud-provider":  o.CloudProvider}
	lists := map[string][]string{
		"--enable-admission-plugins": o.Admission.Enable, "--disable-admission-plugins": o.Admission.Disable,
		"--tls-cipher-suites": o.Serving.TLS.CipherSuites,
	}
	if port := o.Serving.API; port != nil {
		texts["--profiling"], texts["--anonymous-auth"] = strconv.FormatBool(port.Profiling),
			strconv.FormatBool(port.Anonymous)
		lists["--tls-san"], lists["--api-address"] = port.SANs, port.Addresses
	}
	for flag, names := range lists {
		texts[flag] = strings.Join(slices.Sorted(slices.Values(names)), ",")
	}
	for _, flag := range slices.Sorted(maps.Keys(texts)) {
		if value := texts[flag]; value != "" && value != alikeDefaults[flag] {
			states = append(states, configfile.State{Flag: flag, Hash: value})
		}
	}
	return states
}
