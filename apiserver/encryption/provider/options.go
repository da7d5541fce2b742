package provider

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"

	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/apiserver/encryption"
)

// The flags, as upstream names them.
const (
	fileFlag   = "--encryption-provider-config"
	reloadFlag = "--encryption-provider-config-automatic-reload"
)

// Options are upstream's flags.
type Options struct {
	File   string // an EncryptionConfiguration; empty: the data keys encrypt all
	Reload bool   // a change of the file counts without a restart
}

// AddFlags adds the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.File, fileFlag[2:], "",
		"file with an EncryptionConfiguration of apiserver.config.k8s.io: the providers, such as a KMS, that encrypt resources in the store in place of the cluster's own keys. Give the file to all servers; see docs/encryption.md")
	fs.BoolVar(&o.Reload, reloadFlag[2:], false,
		"let a change of this file count within seconds, and not at the next start")
}

// Check validates the options and the file. The error names the flag.
func (o *Options) Check() error {
	if o.File == "" {
		if o.Reload {
			return fmt.Errorf("%s reloads a file: give %s", reloadFlag, fileFlag)
		}
		return nil
	}
	_, _, err := o.read()
	return err
}

func (o *Options) read() (*apiserver.EncryptionConfiguration, []byte, error) {
	data, err := configfile.Read(o.File)
	if err != nil {
		return nil, nil, fmt.Errorf("%s %w", fileFlag, err)
	}
	config, err := Load(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s %s: %w", fileFlag, o.File, err)
	}
	return config, data, nil
}

var codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(apiserver.AddToScheme(scheme))
	utilruntime.Must(apiserverv1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}()

// Load decodes and validates an EncryptionConfiguration. It calls no plugin.
func Load(data []byte) (*apiserver.EncryptionConfiguration, error) {
	if strings.TrimSpace(string(data)) == "" {
		return nil, errors.New("the file is empty: want an EncryptionConfiguration")
	}
	decoded, kind, err := codecs.UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return nil, withoutContent(err)
	}
	config, ok := decoded.(*apiserver.EncryptionConfiguration)
	if !ok {
		return nil, fmt.Errorf("it is a %s: want an EncryptionConfiguration", kind.Kind)
	}
	if err := refused(config); err != nil {
		return nil, err
	}
	if err := validation.ValidateEncryptionConfiguration(config, true).ToAggregate(); err != nil {
		return nil, withoutKeys(config, err)
	}
	for i, entry := range config.Resources {
		if kind := twoKeys(entry.Providers); kind != "" {
			return nil,
				fmt.Errorf(
					"resources[%d]: two keys of %s have the same name and different secrets, so that values do not show which one they need: give each key a name of its own", i, kind)
		}
		for j, name := range entry.Resources {
			of := schema.ParseGroupResource(name)
			if encryption.Never(of) && entry.Providers[0].Identity == nil {
				return nil,
					fmt.Errorf(
						"resources[%d].resources[%d]: objects of the resource %q cannot be encrypted: take it out, or name it with the provider identity", i, j, name)
			}
		}
	}
	return config, nil
}

// twoKeys returns the provider of an entry of which two keys have the same name, or "".
func twoKeys(providers []apiserver.ProviderConfiguration) string {
	secrets := map[[2]string]string{}
	for i := range providers {
		kind := nameOf(&providers[i])
		for _, key := range keysOf(&providers[i]) {
			of := [2]string{kind, key.Name}
			if before, has := secrets[of]; has && before != key.Secret {
				return kind
			}
			secrets[of] = key.Secret
		}
	}
	return ""
}

// keysOf are the keys that a provider has in the file.
func keysOf(p *apiserver.ProviderConfiguration) (keys []apiserver.Key) {
	for _, aes := range []*apiserver.AESConfiguration{p.AESGCM, p.AESCBC} {
		if aes != nil {
			keys = append(keys, aes.Keys...)
		}
	}
	if p.Secretbox != nil {
		keys = append(keys, p.Secretbox.Keys...)
	}
	return keys
}

// refused returns an error for a provider that validation takes and this server does not serve.
func refused(config *apiserver.EncryptionConfiguration) error {
	for i, entry := range config.Resources {
		for j, p := range entry.Providers {
			if p.KMS != nil && p.KMS.APIVersion == "v1" {
				return fmt.Errorf(
					"resources[%d].providers[%d].kms: the plugin %q is of the KMS API v1, which is deprecated and not served: write apiVersion: v2 (without apiVersion it is v1), and use a plugin of v2",
					i, j, p.KMS.Name)
			}
		}
	}
	return nil
}

// An error of a decoder may quote the file, and so its keys: only these parts of it are reported.
var (
	unknownField = regexp.MustCompile(
		`unknown field "((?:(?:resources|providers|aesgcm|aescbc|secretbox|kms|identity|keys|timeout)(?:\[\d+\])?\.)*)`)
	lineOfError = regexp.MustCompile(`\bline (\d+)\b`)
)

// withoutContent is a decoder's error without the file's content.
func withoutContent(err error) error {
	text, where := err.Error(), ""
	if runtime.IsMissingKind(err) || runtime.IsMissingVersion(err) {
		return errors.New(
			"it has no apiVersion or kind: want apiVersion: apiserver.config.k8s.io/v1 and kind: EncryptionConfiguration")
	}
	if runtime.IsNotRegisteredError(err) {
		return errors.New(
			"it is of an unknown apiVersion or kind: want apiVersion: apiserver.config.k8s.io/v1 and kind: EncryptionConfiguration")
	}
	if line := lineOfError.FindStringSubmatch(text); line != nil {
		where = ", in line " + line[1]
	}
	if field := unknownField.FindStringSubmatch(text); field != nil {
		in := cmp.Or(strings.TrimSuffix(field[1], "."), "the file")
		return fmt.Errorf(
			"%s has a field that an EncryptionConfiguration does not know%s (the name is not shown: it may be a key)",
			in, where)
	}
	return fmt.Errorf(
		"it cannot be decoded as an EncryptionConfiguration%s (more is not said: it could show a key). Look at its indents, and at fields with a value of the wrong type", where)
}

// withoutKeys takes the keys of a file out of an error about it: validation quotes some providers.
func withoutKeys(config *apiserver.EncryptionConfiguration, err error) error {
	text := err.Error()
	for _, entry := range config.Resources {
		for i := range entry.Providers {
			for _, key := range keysOf(&entry.Providers[i]) {
				quoted := strings.Trim(strconv.Quote(key.Secret), `"`)
				for _, secret := range append(strings.Fields(key.Secret), key.Secret, quoted,
					strings.TrimSpace(key.Secret)) {
					if len(secret) > 3 {
						text = strings.ReplaceAll(text, secret, "REDACTED")
					}
				}
			}
		}
	}
	return errors.New(text)
}

// nameOf names a provider for people.
func nameOf(p *apiserver.ProviderConfiguration) string {
	switch {
	case p.AESGCM != nil:
		return "aesgcm"
	case p.AESCBC != nil:
		return "aescbc"
	case p.Secretbox != nil:
		return "secretbox"
	case p.KMS != nil:
		return kmsName + p.KMS.Name
	}
	return identity
}

// identity is the name of the provider that changes nothing.
const identity = "identity"

// kmsName begins the name of a plugin.
const kmsName = "kms "
