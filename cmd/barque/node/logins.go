package node

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/pod-security-admission/api"

	"github.com/barque/barque/apiserver/authorizers"
	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/apiserver/logins"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/lifecycle"
)

// accountIssuer is the issuer of the tokens of service accounts.
func (s Settings) accountIssuer() string { return "https://kubernetes.default.svc." + s.Domain }

// startLogins reads the files about logins and authorization, and goes on looking at them.
func (s *server) startLogins(ctx context.Context) (err error) {
	o, issuers := s.options, []string{s.settings.accountIssuer()}
	ways, order := o.Logins, o.Authorization
	if ways == nil {
		ways = logins.NewOptions()
	}
	if order == nil {
		order = authorizers.NewOptions()
	}
	s.logins, err = logins.New(
		logins.Config{Options: ways, Server: o.Name, Issuers: issuers, Audiences: issuers, OwnCAs: s.ids.Trust.EveryPEM,
			Logger: s.logger.With("part", "logins")})
	if err != nil {
		return err
	}
	if err := s.stack.Start(ctx, lifecycle.Component{Name: "logins", Run: s.logins.Run}); err != nil {
		return err
	}
	s.authorizers, err = authorizers.New(
		authorizers.Config{Options: order, Server: o.Name, Logger: s.logger.With("part", "authorization")})
	if err != nil {
		return err
	}
	return s.stack.Start(ctx, lifecycle.Component{Name: "authorization", Run: s.authorizers.Run})
}

// configFiles are those of this server that must be the same on all servers, for its report.
func (s *server) configFiles() []clusterstatus.ConfigFile {
	states := s.options.alike()
	if s.logins != nil {
		states = append(states, s.logins.Files()...)
	}
	if s.authorizers != nil {
		states = append(states, s.authorizers.Files()...)
	}
	states = append(states, s.providers.Files()...)
	out := []clusterstatus.ConfigFile{}
	for _, f := range append(states, s.otherFiles.States()...) {
		out = append(out, clusterstatus.ConfigFile(f))
	}
	return out
}

// alikeDefaults are the defaults of flags that must be the same on all servers, where "" is none.
var alikeDefaults = map[string]string{
	"--pod-security-default": string(api.LevelPrivileged), "--tls-min-version": "VersionTLS12", "--profiling": "true",
	"--anonymous-auth": "true",
}

// alike are the flags that must be the same on all servers. A flag at its default is as none.
func (o *Options) alike() []configfile.State {
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

// startOtherFiles looks at the files of the audit log's policy and of admission, which other parts
// read at the start.
func (s *server) startOtherFiles(ctx context.Context) error {
	o := s.options
	paths := map[string]string{"--admission-control-config-file": o.Admission.ConfigFile}
	if o.Audit != nil {
		paths["--audit-policy-file"], paths["--audit-webhook-config-file"] = o.Audit.PolicyFile,
			o.Audit.WebhookOptions.ConfigFile
	}
	for _, flag := range slices.Sorted(maps.Keys(paths)) {
		path := paths[flag]
		if path == "" {
			continue
		}
		file, err := configfile.Fixed(flag, path, s.logger.With("part", "configuration"))
		if err != nil {
			return err
		}
		s.otherFiles = append(s.otherFiles, file)
	}
	return s.stack.Start(ctx, lifecycle.Component{Name: "configuration files", Run: s.otherFiles.Run})
}
