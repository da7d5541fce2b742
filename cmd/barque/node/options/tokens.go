package options

import (
	"math"
	"time"

	"github.com/spf13/pflag"

	"github.com/barque/barque/membership/enroll"
)

// TokenOptions are the lifetimes of service-account tokens that a server issues.
type TokenOptions struct {
	MaxExpiration time.Duration // 0 is no bound
	Extend        bool
}

// DefaultTokenOptions bound a stolen token to a day. Pods' tokens get that day, so that pods
// outlive the loss of all servers for some hours.
func DefaultTokenOptions() TokenOptions {
	return TokenOptions{MaxExpiration: 24 * time.Hour, Extend: true}
}

// AddFlags adds the flags of a server, with kube-apiserver's names.
func (o *TokenOptions) AddFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&o.MaxExpiration, "service-account-max-token-expiration", o.MaxExpiration,
		"longest lifetime of service-account tokens, from 1h; a request for more is shortened, with a warning; 0 is no limit; give it to all servers")
	flags.BoolVar(&o.Extend, "service-account-extend-token-expiration", o.Extend,
		"let the tokens that pods get without asking last for --service-account-max-token-expiration, or a year without a limit, in place of an hour; give it to all servers")
}

func (o *TokenOptions) validate() error {
	if o.MaxExpiration != 0 && (o.MaxExpiration < time.Hour || o.MaxExpiration > math.MaxUint32*time.Second) {
		return enroll.WrongOption(
			"--service-account-max-token-expiration %s: want 1h at least and 2^32 seconds at most, or 0 for no limit",
			o.MaxExpiration)
	}
	return nil
}
