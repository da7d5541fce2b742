package node

import (
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/membership/enroll"
)

// takeProfile makes the node's profile and the recorded one the same. A profile that the operator
// gave is recorded. One of the cluster that the node joins takes effect at the start after this
// one, so this one ends with ErrRestart.
func takeProfile(o *options.Options, r *enroll.Record, logger *slog.Logger) error {
	s, err := options.SettingsOf(r)
	switch {
	case err != nil || s.Profile == o.Profile:
		return err
	case !o.ProfileGiven:
		logger.Info("the cluster has another profile than this node: starting again with it", "profile", s.Profile)
		return ErrRestart
	}
	logger.Warn("the profile of this node is another one from now on; give it to all nodes", "before", s.Profile, "now",
		o.Profile)
	fields := map[string]json.RawMessage{} // a newer version may have more
	if err := json.Unmarshal(r.Cluster.Settings, &fields); err != nil {
		return fmt.Errorf("%s: the cluster's settings: %w", r.Path(), err)
	}
	delete(fields, "profile")
	if o.Profile != "" {
		if fields["profile"], err = json.Marshal(o.Profile); err != nil {
			return err
		}
	}
	if r.Cluster.Settings, err = json.Marshal(fields); err != nil {
		return err
	}
	return r.Save()
}
