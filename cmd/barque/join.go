package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/node/preflight"
	"github.com/barque/barque/cmd/barque/settings"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/machine"
)

func clusterJoinCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "join https://SERVER:6443",
		Short: "Check whether this machine can join a cluster, and prepare it for that",
		Long: `Check whether this machine can join a cluster: kernel features, data directory, ports,
path to the server, the server's cluster against the token, clocks and versions. If all
checks pass, write the token and the flags into the configuration directory, as settings,
write a systemd unit, and print the command that starts it. The machine joins when 'barque server'
or 'barque agent' starts. A failed start can be repeated.

Without systemd, or by hand: barque server --join … or barque agent --server …`,
		Example: `  barque cluster join https://10.0.0.1:6443 --token-file /root/token
  barque cluster join https://10.0.0.1:6443 --token-file /root/token --role agent
  barque cluster join https://10.0.0.1:6443 --token-file /root/token --dry-run`,
		Args: command.ExactArgs("https://SERVER:6443"),
	}
	j := &joining{flags: addNodeFlags(cmd)}
	cmd.Flags().StringVar(&j.role, "role", roleServer, "role to join in: server or agent")
	cmd.Flags().Uint16Var(&j.flags.options.APIPort, "api-port", defaultAPIPort,
		"port of the API; on an agent, of 127.0.0.1, that leads to it")
	cmd.Flags().Uint16Var(&j.flags.options.PeerPort, "peer-port", defaultPeerPort,
		"port of the traffic between servers; on a server")
	cmd.Flags().StringVar(&j.configDir, "config-dir", "/etc/barque", "where the token and the flags are written")
	cmd.Flags().StringVar(&j.unitDir, "unit-dir", "/etc/systemd/system",
		"directory of the systemd unit, which is written if it does not exist")
	cmd.Flags().BoolVar(&j.dryRun, "dry-run", false, "only check, and write nothing")
	j.format = command.OutputFlag(cmd)
	cmd.RunE = func(c *cobra.Command, args []string) error { return j.run(c, args[0]) }
	return cmd
}

// joining holds the arguments of `barque cluster join`.
type joining struct {
	flags              *nodeFlags
	role               string
	configDir, unitDir string
	dryRun             bool
	format             *string
}

// prepared is the command's result.
type prepared struct {
	Findings []check.Finding `json:"findings"`
	Ready    bool            `json:"ready"`
	Files    []string        `json:"files,omitempty"` // that were written
	Next     string          `json:"next,omitempty"`  // what starts it
}

func (j *joining) run(c *cobra.Command, address string) error {
	wrong := func(err error) error { return command.Usage(c, err) }
	url, err := remote.ServerURL(address)
	switch {
	case err != nil:
		return wrong(fmt.Errorf("%q: %w", address, err))
	case j.role != "server" && j.role != "agent":
		return wrong(fmt.Errorf("--role %q: want server or agent", j.role))
	}
	if err := command.CheckFormat(c, *j.format); err != nil {
		return err
	}
	j.flags.options.Join = url
	service := machine.Joining{Role: j.role, ConfigDir: j.configDir, UnitDir: j.unitDir}
	given, err := j.given(c, service.TokenFile()) // the node reads the machine's settings itself
	if err != nil {
		return err
	}
	lines, err := settings.Lines(given)
	if err != nil {
		return err
	}
	if err := j.loadSettings(c); err != nil {
		return wrong(err)
	}
	o, err := j.flags.complete(c)
	if err != nil {
		return err
	}
	if o.Token == "" {
		return wrong(
			errors.New(
				"joining needs a token: make one on a server with `barque token create --role " + j.role +
					"` and give it with --token-file or --token"))
	}
	o.Backups.Every = 0 // a server's own flags are not asked for here
	findings, err := preflight.Join(c.Context(), &o, j.role, time.Now)
	if err := c.Context().Err(); err != nil {
		return err // an interrupted check is no finding
	}
	if err != nil {
		return err
	}
	p := &prepared{Findings: findings, Ready: true}
	missing := 0
	for _, f := range findings {
		if !f.OK {
			p.Ready = false
			missing++
		}
	}
	if p.Ready && !j.dryRun {
		if p.Files, p.Next, err = service.Write(o.Token, lines); err != nil {
			return err
		}
	}
	if err := command.Print(c, *j.format, p, func(w io.Writer) error { return p.text(w) }); err != nil {
		return err
	}
	if !p.Ready {
		return errors.New(
			terminal.Plural(missing, "thing keeps", "things keep") + " this machine from joining; nothing was changed")
	}
	return nil
}

// loadSettings takes the machine's settings, so that what the node will do is what is checked.
func (j *joining) loadSettings(c *cobra.Command) error {
	kind := settingsOf(j.role)
	kind.Own = append(kind.Own, "role", "format", "dry-run", "config-dir", "unit-dir")
	kind.Foreign = func(name string) bool { return isSettingOf(roleServer, name) || isSettingOf(roleAgent, name) }
	_, err := settings.Load(c.Flags(), kind, settingsFile(c), os.Environ())
	return err
}

// given returns the node's settings among the flags of this command.
func (j *joining) given(c *cobra.Command, tokenFile string) ([]settings.Setting, error) {
	to := map[string]string{"server": "join", "agent": "server"}[j.role]
	names := append(slices.Clone(nodeFlagNames), "api-port")
	if j.role == "server" {
		names = append(names, "peer-port")
	}
	given := []settings.Setting{{Name: to, Values: []string{j.flags.options.Join}},
		{Name: "token-file", Values: []string{tokenFile}}}
	for _, name := range names {
		if f := c.Flags().Lookup(name); f != nil && f.Changed {
			if err := makeAbsolute(f); err != nil {
				return nil, err
			}
			given = append(given, settings.Of(f))
		}
	}
	return given, nil
}

func (p *prepared) text(w io.Writer) error {
	if err := writeFindings(w, p.Findings); err != nil {
		return err
	}
	if len(p.Files) > 0 {
		fmt.Fprintf(w, "\nwritten:\t%s\n", strings.Join(p.Files, ", "))
	}
	if p.Next != "" {
		fmt.Fprintf(w, "start it:\t%s\n", p.Next)
	}
	return nil
}
