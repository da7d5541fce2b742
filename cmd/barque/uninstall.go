package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/node/installed"
	"github.com/barque/barque/cmd/barque/settings"
	"github.com/barque/barque/machine"
)

func uninstallCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take Barque off this machine: service, pods, network, program",
		Long: `Take Barque off this machine: stop the service, end all pods, unmount their volumes,
remove rules, links, routes, cgroups and namespaces, put the kernel's settings back, and
remove the service and the program. Pods are ended without notice: drain the node first
(barque kubectl drain), and delete it afterwards (barque kubectl delete node).

What a reboot keeps stays: the data directory with images and volumes, the logs of pods, and
/etc/barque. --purge removes these, too. The plan is shown first. A removal that was
interrupted goes on with the same command.

It is refused on a server that is a member of its cluster: let it leave first, with 'barque
cluster leave', or give --force.`,
		Example: "  barque uninstall --dry-run\n  barque uninstall --yes\n  barque uninstall --purge --force --yes",
		Args:    command.NoArgs,
	}
	u := new(uninstalling)
	cmd.Flags().StringVar(&u.dataDir, "data-dir", command.DefaultDataDir,
		"data directory of the node (default: the one in the settings, or this one)")
	cmd.Flags().BoolVar(&u.purge, "purge", false, "remove the node's data, the logs of pods and /etc/barque, too")
	cmd.Flags().BoolVar(&u.force, "force", false, "also a server that its cluster counts on")
	cmd.Flags().BoolVar(&u.dryRun, "dry-run", false, "only show the plan, or the reason of a refusal")
	cmd.Flags().BoolVar(&u.yes, "yes", false, "do not ask")
	cmd.RunE = func(c *cobra.Command, _ []string) error { return u.run(c) }
	return cmd
}

// uninstalling holds the arguments of `barque uninstall`.
type uninstalling struct {
	dataDir                   string
	purge, force, dryRun, yes bool
}

func (u *uninstalling) run(c *cobra.Command) error {
	if os.Geteuid() != 0 {
		return errors.New("uninstalling takes root: run it with sudo; nothing was changed")
	}
	dataDir, err := u.findDataDir(c)
	if err != nil {
		return err
	}
	if u.purge {
		if err := installed.IsOfNode(dataDir); err != nil {
			return refused(err)
		}
	}
	member, err := installed.Membership(dataDir)
	if err != nil && !u.force {
		return refused(fmt.Errorf("it is unknown whether a cluster counts on this machine: %w; to go on all the same: --force", err))
	}
	if why := member.Refusal(dataDir, u.purge); why != "" && !u.force {
		return refused(errors.New(strings.TrimSuffix(why, ".")))
	}
	left, err := installed.Remains(dataDir, member.Name)
	if err != nil {
		return err
	}
	removal := machine.Removal{Inits: machine.Inits("", machine.Execute), Kinds: left.Kinds, Purge: u.purge,
		Program: machine.ProgramPath, Unused: func(ctx context.Context) error { return installed.Unused(ctx, dataDir) }}
	if u.purge {
		removal.Kinds = append(removal.Kinds, left.Logs...)
		removal.DataDirs = append(left.Data, dataDir)
	}
	if removal.Packaged, err = machine.Packaged(c.Context(), removal.Program, machine.Execute); err != nil {
		return err
	}
	plan, err := removal.Plan(c.Context())
	if err != nil {
		return err
	}
	out := c.OutOrStdout()
	if plan.Done() {
		fmt.Fprintln(out, "Nothing of Barque is on this machine that would be removed; nothing was changed.")
		u.sayKept(c, dataDir, left.Others)
		return nil
	}
	fmt.Fprintln(out, "Barque is taken off this machine:")
	if err := plan.Write(out, false); err != nil {
		return err
	}
	u.sayKept(c, dataDir, left.Others)
	if u.dryRun {
		return nil
	}
	if !u.yes {
		fmt.Fprint(c.ErrOrStderr(), "Go on? [y/N] ")
		if err := command.Confirmed(c); err != nil {
			return err
		}
	}
	if err := plan.Run(c.Context(), func(step string) { fmt.Fprintln(out, step) }); err != nil {
		return unfinished(c, err, "the same command goes on")
	}
	fmt.Fprintln(out, "Barque is off this machine.")
	return nil
}

// sayKept names the directories that stay.
func (u *uninstalling) sayKept(c *cobra.Command, dataDir string, others []string) {
	var kept []string
	if !u.purge {
		kept = []string{dataDir, machine.ConfigDir}
	}
	for _, path := range append(kept, others...) {
		if _, err := os.Stat(path); err == nil {
			fmt.Fprintf(c.OutOrStdout(), "  %s stays\n", path)
		}
	}
}

// findDataDir returns the node's data directory: of the flag, of the machine's settings, or of the
// arguments that an earlier version has written down.
func (u *uninstalling) findDataDir(c *cobra.Command) (string, error) {
	if c.Flags().Changed("data-dir") {
		return filepath.Abs(u.dataDir)
	}
	for _, role := range []string{roleServer, roleAgent} {
		of := &cobra.Command{Use: role}
		addRoleFlags(of, role)
		if _, err := settings.Load(of.Flags(), settingsOf(role), settings.DefaultFile, nil); err != nil {
			return "", fmt.Errorf("%w; to take another word for where the node's data are: give --data-dir", err)
		}
		if f := of.Flags().Lookup("data-dir"); f.Changed {
			if !filepath.IsAbs(f.Value.String()) {
				return "", fmt.Errorf("the settings have the data directory %q, which depends on where the node was started: give its whole path with --data-dir", f.Value)
			}
			return f.Value.String(), nil
		}
		if dir := machine.EarlierDataDir(machine.ConfigDir, role); dir != "" {
			return dir, nil
		}
	}
	return u.dataDir, nil
}
