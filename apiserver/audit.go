package apiserver

import (
	"fmt"

	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// applyTo starts the audit log, if there is a policy for one.
func (a Audit) applyTo(c *genericapiserver.Config) error {
	if a.PolicyFile == "" {
		return nil
	}
	o := genericoptions.NewAuditOptions()
	o.PolicyFile = a.PolicyFile
	o.LogOptions.Path = a.LogPath
	o.LogOptions.MaxAge = a.MaxAgeDays
	o.LogOptions.MaxBackups = a.MaxBackups
	o.LogOptions.MaxSize = a.MaxSizeMB
	if errs := o.Validate(); len(errs) > 0 {
		return fmt.Errorf("audit log: %w", errs[0])
	}
	if err := o.ApplyTo(c); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}
