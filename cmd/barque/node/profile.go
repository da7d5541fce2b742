package node

import (
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/barque/barque/membership/enroll"
)

// Profiles of a cluster. A profile is a set of defaults of flags; package main has it. Each node
// records its profile with the settings of its cluster, and hands it to machines that join there.
const (
	ProfileCIS = "cis"
	// NoProfile is what --profile takes for none. It is recorded as "".
	NoProfile = "none"
)

// CheckProfile refuses unknown profiles.
func CheckProfile(name string) error {
	switch name {
	case "", NoProfile, ProfileCIS:
		return nil
	}
	return fmt.Errorf("unknown profile %q: want %s or %s", name, ProfileCIS, NoProfile)
}

// RecordedProfile is that of the node with a data directory; "" is none, and that of a machine that
// has not joined.
func RecordedProfile(dataDir string) (string, error) {
	r, err := enroll.Load(dataDir)
	if err != nil || r == nil || len(r.Cluster.Settings) == 0 {
		return "", err
	}
	s, err := settingsOf(r)
	if err != nil {
		return "", err
	}
	if err := CheckProfile(s.Profile); err != nil {
		return "", fmt.Errorf("%s: %w; a newer version has recorded it: start that one", r.Path(), err)
	}
	return s.Profile, nil
}

// takeProfile makes the node's profile and the recorded one the same. A profile that the operator
// gave is recorded. One of the cluster that the node joins takes effect at the start after this
// one, so this one ends with ErrRestart.
func (o *Options) takeProfile(r *enroll.Record, logger *slog.Logger) error {
	s, err := settingsOf(r)
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
