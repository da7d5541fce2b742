package authorizers

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	v1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	"k8s.io/apiserver/pkg/apis/apiserver/v1beta1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/abac"
	"github.com/barque/barque/apiserver/configfile"
)

// The modes, as upstream names them.
const (
	modeNode    = "Node"
	modeRBAC    = "RBAC"
	modeABAC    = "ABAC"
	modeWebhook = string(apiserver.TypeWebhook)
)

var modes = []string{modeNode, modeRBAC, modeABAC, modeWebhook}

// The flags that name files, and the modes'.
const (
	configFlag  = "--authorization-config"
	modeFlag    = "--authorization-mode"
	policyFlag  = "--authorization-policy-file"
	webhookFlag = "--authorization-webhook-config-file"
)

// flagTimeout bounds a call of the webhook that flags configure, as upstream does.
const flagTimeout = 30 * time.Second

// Options are upstream's flags.
type Options struct {
	ConfigFile string // an AuthorizationConfiguration
	Modes      []string
	PolicyFile string // of ABAC

	WebhookConfigFile, WebhookVersion                      string
	WebhookCacheAuthorizedTTL, WebhookCacheUnauthorizedTTL time.Duration

	changed func(flag string) bool
}

// NewOptions returns the defaults: Node and RBAC.
func NewOptions() *Options {
	return &Options{Modes: []string{modeNode, modeRBAC}, WebhookVersion: "v1beta1",
		WebhookCacheAuthorizedTTL: 5 * time.Minute, WebhookCacheUnauthorizedTTL: 30 * time.Second,
		changed: func(string) bool { return false }}
}

// AddFlags adds the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ConfigFile, configFlag[2:], "",
		"file with an AuthorizationConfiguration of apiserver.config.k8s.io: the authorizers in their order. A change counts within seconds; give the file to all servers")
	fs.StringSliceVar(&o.Modes, modeFlag[2:], o.Modes,
		"authorizers in their order, of "+strings.Join(modes, ", ")+
			"; give it to all servers. Nodes and administrators never depend on a webhook")
	fs.StringVar(&o.PolicyFile, policyFlag[2:], "",
		"file with the policies of ABAC, one in JSON in each line. A change counts within seconds")
	fs.StringVar(&o.WebhookConfigFile, webhookFlag[2:], "", "kubeconfig of the webhook of --authorization-mode")
	fs.StringVar(&o.WebhookVersion, "authorization-webhook-version", o.WebhookVersion,
		"version of the SubjectAccessReview for the webhook: v1beta1 or v1")
	fs.DurationVar(&o.WebhookCacheAuthorizedTTL, "authorization-webhook-cache-authorized-ttl",
		o.WebhookCacheAuthorizedTTL, "how long the webhook's permission counts")
	fs.DurationVar(&o.WebhookCacheUnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl",
		o.WebhookCacheUnauthorizedTTL, "how long its refusal counts")
	o.changed = fs.Changed
}

// Check validates the options and the files that they name. The error names the flag.
func (o *Options) Check() error {
	config, _, err := o.read()
	if err != nil {
		return err
	}
	if o.PolicyFile != "" {
		if _, _, err := o.policies(); err != nil {
			return err
		}
	}
	return o.about(o.fits(config))
}

// about adds the flag and the file of the configuration to an error about it.
func (o *Options) about(err error) error {
	if err == nil || o.ConfigFile == "" {
		return err
	}
	return fmt.Errorf("%s %s: %w", configFlag, o.ConfigFile, err)
}

// fits checks that a configuration and the flags beside it belong together.
func (o *Options) fits(config *apiserver.AuthorizationConfiguration) error {
	has := func(mode string) bool {
		return slices.ContainsFunc(config.Authorizers,
			func(a apiserver.AuthorizerConfiguration) bool { return string(a.Type) == mode })
	}
	switch {
	case has(modeABAC) && o.PolicyFile == "":
		return fmt.Errorf("ABAC decides by a file of policies: give %s", policyFlag)
	case o.PolicyFile != "" && !has(modeABAC):
		return fmt.Errorf("%s is for ABAC, which is not among the authorizers", policyFlag)
	}
	for _, a := range config.Authorizers {
		if a.Webhook == nil {
			continue
		}
		if _, err := client(a.Webhook); err != nil {
			return o.ofWebhook(a.Name, err)
		}
	}
	return nil
}

// ofWebhook is an error about the kubeconfig of a webhook, which begins with the path.
func (o *Options) ofWebhook(name string, err error) error {
	if o.ConfigFile == "" {
		return fmt.Errorf("%s %w", webhookFlag, err)
	}
	return fmt.Errorf("the webhook %s: %w", name, err)
}

// read returns the configuration, and the content of its file if it has one.
func (o *Options) read() (*apiserver.AuthorizationConfiguration, []byte, error) {
	if o.ConfigFile == "" {
		config, err := o.ofFlags()
		return config, nil, err
	}
	for _, flag := range []string{modeFlag, webhookFlag, "--authorization-webhook-version",
		"--authorization-webhook-cache-authorized-ttl", "--authorization-webhook-cache-unauthorized-ttl"} {
		if o.changed(flag[2:]) {
			return nil, nil, fmt.Errorf("%s has the authorizers: it goes without %s", configFlag, flag)
		}
	}
	data, err := configfile.Read(o.ConfigFile)
	if err != nil {
		return nil, nil, fmt.Errorf("%s %w", configFlag, err)
	}
	config, err := Load(data)
	if err != nil {
		return nil, nil, o.about(err)
	}
	return config, data, nil
}

// ofFlags returns the configuration that flags make.
func (o *Options) ofFlags() (*apiserver.AuthorizationConfiguration, error) {
	config := &apiserver.AuthorizationConfiguration{}
	for _, mode := range o.Modes {
		switch {
		case mode == "AlwaysAllow" || mode == "AlwaysDeny":
			return nil,
				fmt.Errorf(
					"%s %s is not served: bind the role cluster-admin where everybody may do everything, and no role where nobody may do anything", modeFlag, mode)
		case !slices.Contains(modes, mode):
			return nil, fmt.Errorf("%s %q: want some of %s", modeFlag, mode, strings.Join(modes, ", "))
		}
		a := apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(mode), Name: strings.ToLower(mode)}
		if mode == modeWebhook {
			if o.WebhookConfigFile == "" {
				return nil, fmt.Errorf("%s has a webhook: give its kubeconfig with %s", modeFlag, webhookFlag)
			}
			a.Webhook = &apiserver.WebhookConfiguration{
				AuthorizedTTL:              metav1.Duration{Duration: o.WebhookCacheAuthorizedTTL},
				UnauthorizedTTL:            metav1.Duration{Duration: o.WebhookCacheUnauthorizedTTL},
				CacheAuthorizedRequests:    o.WebhookCacheAuthorizedTTL > 0,
				CacheUnauthorizedRequests:  o.WebhookCacheUnauthorizedTTL > 0,
				Timeout:                    metav1.Duration{Duration: flagTimeout},
				SubjectAccessReviewVersion: o.WebhookVersion,
				FailurePolicy:              apiserver.FailurePolicyNoOpinion,
				ConnectionInfo: apiserver.WebhookConnectionInfo{
					Type:           apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile,
					KubeConfigFile: &o.WebhookConfigFile},
			}
		}
		config.Authorizers = append(config.Authorizers, a)
	}
	names := map[string]bool{}
	for _, a := range config.Authorizers {
		if names[a.Name] {
			return nil, fmt.Errorf("%s has %s twice", modeFlag, a.Type)
		}
		names[a.Name] = true
	}
	switch {
	case len(config.Authorizers) == 0:
		return nil, fmt.Errorf("%s is empty: want some of %s", modeFlag, strings.Join(modes, ", "))
	case o.WebhookConfigFile != "" && !names["webhook"]:
		return nil, fmt.Errorf("%s is for Webhook, which is not in %s", webhookFlag, modeFlag)
	case o.WebhookVersion != "v1" && o.WebhookVersion != "v1beta1":
		return nil, fmt.Errorf("--authorization-webhook-version %q: want v1 or v1beta1", o.WebhookVersion)
	case o.WebhookCacheAuthorizedTTL < 0 || o.WebhookCacheUnauthorizedTTL < 0:
		return nil,
			errors.New(
				"--authorization-webhook-cache-authorized-ttl and --authorization-webhook-cache-unauthorized-ttl cannot be negative")
	}
	return config, nil
}

// kind is that of the file. Its versions are those of load.
var kind = configfile.Kind{Name: "AuthorizationConfiguration",
	APIVersions: []string{v1.SchemeGroupVersion.String(), v1beta1.SchemeGroupVersion.String(),
		v1alpha1.SchemeGroupVersion.String()}}

// compiler is made once: it takes long, and much memory.
var compiler = sync.OnceValue(authorizationcel.NewDefaultCompiler)

// Load decodes and validates an AuthorizationConfiguration.
func Load(data []byte) (*apiserver.AuthorizationConfiguration, error) {
	if err := kind.Check(data); err != nil {
		return nil, err
	}
	config, err := load.LoadFromData(data)
	if err != nil {
		return nil, configfile.Plain(err)
	}
	for i, a := range config.Authorizers {
		if err := found(a.Webhook); err != nil {
			return nil, fmt.Errorf("authorizers[%d].webhook.connectionInfo.kubeConfigFile: %w", i, err)
		}
	}
	if err := validation.ValidateAuthorizationConfiguration(compiler(), nil, config, sets.New(modes...),
		sets.New(modeWebhook)).ToAggregate(); err != nil {
		return nil, err
	}
	for i, a := range config.Authorizers {
		if a.Webhook != nil &&
			a.Webhook.ConnectionInfo.Type != apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile {
			return nil,
				fmt.Errorf("authorizers[%d].webhook.connectionInfo.type: %s would ask this server itself; want %s", i,
					a.Webhook.ConnectionInfo.Type, apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile)
		}
	}
	return config, nil
}

// found checks that the kubeconfig of a webhook can be read. Other faults of the path are left to
// the validation.
func found(w *apiserver.WebhookConfiguration) error {
	if w == nil || w.ConnectionInfo.KubeConfigFile == nil || !filepath.IsAbs(*w.ConnectionInfo.KubeConfigFile) {
		return nil
	}
	_, err := configfile.Read(*w.ConnectionInfo.KubeConfigFile)
	return err
}

// client returns the configuration of the client of a webhook.
func client(w *apiserver.WebhookConfiguration) (*rest.Config, error) {
	config, err := configfile.Webhook(*w.ConnectionInfo.KubeConfigFile)
	if err != nil {
		return nil, err
	}
	config.Timeout = w.Timeout.Duration
	return config, nil
}

// policies reads the file of ABAC.
func (o *Options) policies() (*abac.Authorizer, []byte, error) {
	data, err := configfile.Read(o.PolicyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("%s %w", policyFlag, err)
	}
	a, err := abac.New(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s %s: %w", policyFlag, o.PolicyFile, err)
	}
	return a, data, nil
}
