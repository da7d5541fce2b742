package operators

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/edge/gateway/convert"
	"github.com/barque/barque/edge/gateway/translate"
	"github.com/barque/barque/internal/exitcode"
)

// IngressCommand is `barque ingress`.
func IngressCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ingress", Short: "Work on Ingresses"}
	cmd.AddCommand(ingressConvertCommand())
	return cmd
}

func ingressConvertCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "convert",
		Short: "Print Ingresses as objects of the Gateway API",
		Long: `Print Ingresses as objects of the Gateway API: for each namespace a Gateway, and the
HTTPRoutes of its Ingresses. Nothing is changed.

Ingresses are understood as this cluster's gateway understands them, with the annotations
of ingress-nginx. What has no equivalent in the Gateway API is a comment in the output
and a line on standard error, and the exit code is 9. An Ingress is left out if its
routes would let in more, or send requests elsewhere, without that.`,
		Example: `  barque ingress convert -n web > gateway.yaml
  barque ingress convert -A --ingress-class nginx
  helm template chart | barque ingress convert -f - --gateway-class barque`,
		Args: command.NoArgs,
	}
	kubeconfig := command.KubeconfigFlag(cmd)
	files := cmd.Flags().StringSliceP("file", "f", nil,
		"read Ingresses from this file in place of the cluster, or with - from standard input; may be repeated. Services in it resolve names of ports")
	namespace := cmd.Flags().StringP("namespace", "n", "default",
		"namespace of the Ingresses; with --file of those that name none")
	all := cmd.Flags().BoolP("all-namespaces", "A", false, "convert the Ingresses of all namespaces")
	class := cmd.Flags().String("ingress-class", "", "convert the Ingresses of this class only (default: all classes)")
	of := cmd.Flags().String("gateway-class", translate.Class, "class of the printed Gateways")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if *all && (len(*files) > 0 || c.Flags().Changed("namespace")) {
			return command.Usage(c, errors.New("--all-namespaces goes without --namespace and --file"))
		}
		in, err := ingressInput(c, *kubeconfig, *files, *namespace, *all)
		if err != nil {
			return err
		}
		if *class != "" {
			in.OfClass(*class)
		}
		if len(in.Ingresses) == 0 {
			return errors.New("there is no Ingress to convert")
		}
		result := convert.Convert(in, *of)
		if err := result.Write(c.OutOrStdout()); err != nil {
			return err
		}
		for _, line := range result.Losses() {
			fmt.Fprintln(c.ErrOrStderr(), line)
		}
		if result.Lost() {
			return &exitcode.Error{Code: exitcode.Lossy}
		}
		return nil
	}
	return cmd
}

func ingressInput(
	c *cobra.Command, kubeconfig string, files []string, namespace string, all bool,
) (convert.Input, error) {
	if len(files) == 0 {
		client, config, err := command.NewClient(kubeconfig)
		if err != nil {
			return convert.Input{}, err
		}
		if all {
			namespace = ""
		}
		in, err := convert.FromCluster(c.Context(), client, namespace)
		return in, remote.WithAdvice(config, err)
	}
	if !c.Flags().Changed("namespace") {
		namespace = "" // objects without one stay so
	}
	var in convert.Input
	for _, name := range files {
		if err := readIngresses(c, &in, name, namespace); err != nil {
			return in, err
		}
	}
	return in, nil
}

func readIngresses(c *cobra.Command, in *convert.Input, name, namespace string) error {
	var from io.Reader = c.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // it was only read
		from = f
	}
	if err := in.Read(from, namespace); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
