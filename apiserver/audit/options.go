package audit

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/barque/barque/apiserver/configfile"
)

// The flags that name files.
const (
	policyFlag  = "--audit-policy-file"
	webhookFlag = "--audit-webhook-config-file"
)

// Off is the value of --audit-log-path for no file.
const Off = "none"

const (
	defaultMaxAgeDays = 30
	defaultMaxBackups = 10
	defaultMaxSizeMB  = 100
)

// Options are upstream's, with defaults of our own.
type Options struct {
	*genericoptions.AuditOptions
	pathGiven func() bool // whether the user has set --audit-log-path
}

// NewOptions returns the defaults: a file that is rotated and compressed, and that no request waits
// for.
func NewOptions() *Options {
	o := &Options{AuditOptions: genericoptions.NewAuditOptions(), pathGiven: func() bool { return false }}
	log := &o.LogOptions
	log.MaxAge, log.MaxBackups, log.MaxSize, log.Compress = defaultMaxAgeDays, defaultMaxBackups, defaultMaxSizeMB, true
	log.BatchOptions.Mode = genericoptions.ModeBatch
	return o
}

// usages replace upstream's help where the meaning or the words are ours.
var usages = map[string]string{
	"audit-policy-file": "file with the audit policy, a Policy of audit.k8s.io/v1; give it to all servers (default: who changed what, and who read Secrets, without their contents)",
	"audit-log-path": "file of the audit log, or - for standard output; " + Off +
		", or an empty value, switches it off (default: DATA-DIR/audit/audit.log)",
	"audit-log-maxage":          "days after which a rotated audit file is deleted; 0 is never",
	"audit-log-maxbackup":       "how many rotated audit files stay; 0 is all",
	"audit-log-maxsize":         "size in MiB at which the audit file is rotated; 0 is never",
	"audit-log-format":          "format of the audit file: json, or legacy for one line of text, which 'barque audit' does not read",
	"audit-log-compress":        "compress rotated audit files with gzip",
	"audit-log-version":         "API version of the events in the audit file",
	"audit-webhook-config-file": "kubeconfig of the webhook that gets the audit events",
	"audit-webhook-version":     "API version of the events for the webhook",
}

// usagesOfBoth have the name of the sink in the flag's name.
var usagesOfBoth = map[string]string{
	"mode":                    "when events are sent: batch, from a queue that no request waits for; blocking, before the answer; blocking-strict, which also refuses requests whose event cannot be sent",
	"batch-buffer-size":       "how many events wait in the queue before more are lost",
	"batch-max-size":          "how many events are sent at once",
	"batch-max-wait":          "how long events wait until that many are there",
	"batch-throttle-enable":   "limit how often events are sent",
	"batch-throttle-qps":      "how many times a second, on average",
	"batch-throttle-burst":    "how many times at once after a pause",
	"truncate-enabled":        "shorten large events and split large batches",
	"truncate-max-batch-size": "bytes of a batch at which it is split",
	"truncate-max-event-size": "bytes of an event above which its bodies are left out; if it stays larger, it is lost",
}

// AddFlags adds upstream's flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.AuditOptions.AddFlags(fs)
	for name, usage := range usages {
		fs.Lookup(name).Usage = usage
	}
	for sink, of := range map[string]string{"log": "audit file: ", "webhook": "audit webhook: "} {
		for name, usage := range usagesOfBoth {
			fs.Lookup("audit-" + sink + "-" + name).Usage = of + usage
		}
	}
	fs.Lookup("audit-webhook-initial-backoff").Usage = "audit webhook: time before the first retry"
	o.pathGiven = func() bool { return fs.Changed("audit-log-path") }
}

// Path returns the path of the file, given the default one; "" is none and "-" standard output.
func (o *Options) Path(otherwise string) string {
	path := o.LogOptions.Path
	switch {
	case path == Off:
		return ""
	case path == "" && !o.pathGiven():
		return otherwise
	}
	return path
}

// Check validates the options and the files that they name. The error names the flag.
func (o *Options) Check() error {
	checked := *o.AuditOptions
	checked.LogOptions.Path = o.Path("-")
	if wrong := checked.Validate(); len(wrong) > 0 {
		return fmt.Errorf("--audit-…: %w", errors.Join(wrong...))
	}
	if _, err := readPolicy(o.PolicyFile); err != nil {
		return err
	}
	if o.WebhookOptions.ConfigFile == "" {
		return nil
	}
	if _, err := configfile.Webhook(o.WebhookOptions.ConfigFile); err != nil {
		return fmt.Errorf("%s %w", webhookFlag, err)
	}
	return nil
}
