// Command argocd is the part of Argo CD that syncs: the application controller, the repo server, and a cache for both.
//
// As with Argo CD's own binary, the name of the symbolic link selects the component. The cache is miniredis, Redis in
// memory, which Argo CD's own tests use; it listens on the address in the first argument.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/alicebob/miniredis/v2"
	"github.com/spf13/cobra"

	controller "github.com/argoproj/argo-cd/v3/cmd/argocd-application-controller/commands"
	reposerver "github.com/argoproj/argo-cd/v3/cmd/argocd-repo-server/commands"
)

var commands = map[string]func() *cobra.Command{
	"argocd-application-controller": controller.NewCommand,
	"argocd-repo-server":            reposerver.NewCommand,
	"argocd-redis":                  newRedis,
}

func newRedis() *cobra.Command {
	return &cobra.Command{
		Use:  "argocd-redis ADDRESS",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, arguments []string) error {
			if err := miniredis.NewMiniRedis().StartAddr(arguments[0]); err != nil {
				return err
			}
			select {}
		},
	}
}

func main() {
	name := filepath.Base(os.Args[0])
	command, known := commands[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%q is not one of argocd-application-controller, argocd-repo-server, argocd-redis\n", name)
		os.Exit(2)
	}
	if command().Execute() != nil {
		os.Exit(1)
	}
}
