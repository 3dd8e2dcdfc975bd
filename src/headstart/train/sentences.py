"""Sentences in other languages that a model is asked to translate.

A small model hardly writes German of its own, so what it would ask itself to translate is not what people ask. These sentences
are put together from parts: plain news and everyday prose, grammatical by construction, hundreds of thousands of different
ones.
"""

from __future__ import annotations

import random


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("|"))


_WHEN = _words(
    "Am Montag|Am vergangenen Wochenende|Gestern Abend|Seit drei Jahren|Nach dem Ende der Verhandlungen"
    "|Im Herbst 2015|Heute Morgen|In der vergangenen Woche|Kurz vor Mitternacht|Während der Sommerferien"
    "|Bereits im Januar|Vor wenigen Tagen|Im nächsten Jahr|Trotz der schlechten Wetterlage|Nach Angaben der Polizei"
    "|Nach einer langen Diskussion|Zum ersten Mal seit zehn Jahren|Anfang des Monats|Laut einer neuen Studie"
    "|In diesem Zusammenhang|Auf Wunsch vieler Bürger|Im Laufe des Nachmittags"
)
_SUBJECTS = _words(
    "die Regierung|der Bürgermeister|die Polizei|das Unternehmen|die Universität|ein Sprecher der Stadt"
    "|der neue Trainer|die Mannschaft|der Präsident|die Kommission|eine Gruppe von Forschern|das Krankenhaus"
    "|der Verein|die Schule|ein junger Mann aus Leipzig|die Feuerwehr|der Minister|die Bank|meine Schwester"
    "|unser Nachbar|die Firma aus Hamburg|der Schriftsteller|die Zeitung|das Gericht in München|die Opposition"
    "|der Fahrer des Wagens|die Mutter von zwei Kindern|das Museum|der Verband"
)
_PARTICIPLES = _words(
    "einen neuen Plan vorgestellt|die Ergebnisse der Untersuchung veröffentlicht"
    "|mehrere Straßen in der Innenstadt gesperrt|über die Zukunft des Flughafens gesprochen|das Haus am See verkauft"
    "|gegen die Entscheidung protestiert|den Preis für das beste Buch gewonnen"
    "|rund zwei Millionen Euro für den Bau einer Brücke ausgegeben|auf die Gefahren im Straßenverkehr hingewiesen"
    "|die Arbeit an dem Projekt beendet|mit den Vertretern der Gewerkschaft verhandelt"
    "|eine schwere Niederlage gegen den Tabellenführer erlitten|die Zahl der Arbeitslosen deutlich verringert"
    "|einen Vertrag mit einem Partner in China unterschrieben|am Bahnhof auf den letzten Zug gewartet"
    "|die alten Fenster ersetzt|den Brief noch nicht beantwortet"
    "|eine Ausstellung über das Leben im Mittelalter eröffnet|viel Geld für die Opfer gesammelt"
    "|die Öffentlichkeit zu spät über den Unfall informiert|im dritten Viertel die Führung übernommen"
    "|ein Mittel gegen die Krankheit gefunden|die Bewohner vor dem Hochwasser gewarnt"
    "|das Spiel erst in der Verlängerung entschieden"
)
_INFINITIVES = _words(
    "bis zum Ende des Jahres hundert neue Stellen schaffen|die Steuern für kleine Betriebe senken"
    "|im Sommer nach Italien fahren|den Vertrag um zwei Jahre verlängern|die Kosten nicht allein tragen"
    "|das alte Rathaus abreißen und durch ein neues ersetzen|den Kindern bei den Hausaufgaben helfen"
    "|auf die Fragen der Journalisten antworten|die Qualität des Wassers regelmäßig prüfen"
    "|mehr für den Schutz der Umwelt tun|am Samstag gegen den Meister aus Bayern antreten"
    "|die Wohnung so schnell wie möglich verlassen|über den Vorschlag noch einmal nachdenken"
    "|die Daten der Kunden besser schützen|mit dem Fahrrad zur Arbeit fahren|den Verkehr in der Altstadt beruhigen"
    "|weitere Proben untersuchen|eine neue Linie zwischen Berlin und Prag eröffnen"
    "|sich um die Pflege der älteren Menschen kümmern|das Konzert wegen des Sturms verschieben"
)
_TAILS = _words(
    "||||, weil es dafür keine andere Lösung gab|, obwohl viele Menschen dagegen waren|, sagte ein Augenzeuge"
    "|, wie am Dienstag bekannt wurde|, aber die Mehrheit war damit nicht einverstanden"
    "|, damit die Arbeiten pünktlich beginnen können|, und das hat alle überrascht"
    "|, berichtet die Frankfurter Allgemeine Zeitung|, teilte das Ministerium mit|, ohne die Eltern vorher zu fragen"
)
_WITH_PARTICIPLE, _WITH_INFINITIVE = _words("hat|hatte"), _words("will|kann|muss|soll|wollte|konnte|musste|wird")
_EVERYDAY = _words(
    "Ich möchte gern ein Zimmer mit Blick auf das Meer reservieren."
    "|Wie komme ich von hier am schnellsten zum Bahnhof?"
    "|Das Frühstück war ausgezeichnet, aber das Bett war viel zu weich."
    "|Können Sie mir bitte sagen, wann das Museum schließt?|Wir haben uns seit der Schulzeit nicht mehr gesehen."
    "|Der Film war langweiliger, als ich gedacht hatte.|Wenn es morgen regnet, bleiben wir einfach zu Hause."
    "|Sie liest jeden Abend eine Geschichte vor, bevor die Kinder einschlafen."
    "|Leider ist die Maschine schon nach zwei Wochen kaputtgegangen."
    "|Es tut mir leid, dass ich gestern nicht angerufen habe."
    "|Das Hotel liegt ruhig und ist nur fünf Minuten vom Strand entfernt.|Bitte vergiss nicht, die Blumen zu gießen."
)
_FRENCH = (
    _words(
        "Hier soir,|La semaine dernière,|Depuis deux ans,|En 2012,|Selon le journal,|Malgré la pluie,"
        "|À la fin du mois,|Ce matin,|Pendant les vacances,|Dans le nord du pays,"
    ),
    _words(
        "le gouvernement|la directrice de l'école|un groupe de chercheurs|notre voisin|l'entreprise|la police"
        "|le maire de la ville|une jeune femme|le ministre|l'équipe nationale"
    ),
    _words(
        "a annoncé une nouvelle mesure pour protéger l'environnement.|a acheté une maison près de la rivière."
        "|a publié les résultats d'une longue enquête.|a perdu le match contre l'Espagne."
        "|a refusé de répondre aux questions.|a ouvert un restaurant dans le centre.|a décidé de fermer l'usine."
        "|a gagné le premier prix du concours.|a demandé plus d'argent pour les hôpitaux."
        "|a trouvé un vieux livre dans la cave."
    ),
)
_SPANISH = (
    _words(
        "Ayer por la tarde,|El año pasado,|Desde hace meses,|En el verano de 2018,|Según los vecinos,"
        "|A pesar de la lluvia,|Antes de la reunión,|Esta mañana,|Durante la noche,|En el sur del país,"
    ),
    _words(
        "el presidente|la profesora|un equipo de médicos|mi hermano|la empresa|el ayuntamiento|la policía"
        "|una mujer de Sevilla|el ministro|la selección"
    ),
    _words(
        "anunció un plan para crear más empleo.|compró una casa cerca de la playa."
        "|publicó los resultados del estudio.|perdió el partido en el último minuto."
        "|no quiso hablar con los periodistas.|abrió una biblioteca para los niños.|decidió cerrar la fábrica."
        "|ganó el premio a la mejor película.|pidió ayuda a sus amigos.|encontró las llaves en el jardín."
    ),
)


def german(rng: random.Random) -> str:
    """A German sentence."""
    if rng.random() < 0.05:
        return rng.choice(_EVERYDAY)
    if rng.random() < 0.6:
        verb, rest = rng.choice(_WITH_PARTICIPLE), rng.choice(_PARTICIPLES)
    else:
        verb, rest = rng.choice(_WITH_INFINITIVE), rng.choice(_INFINITIVES)
    subject, tail = rng.choice(_SUBJECTS), rng.choice(_TAILS)
    if rng.random() < 0.6:
        return f"{rng.choice(_WHEN)} {verb} {subject} {rest}{tail}."
    return f"{subject[0].upper()}{subject[1:]} {verb} {rest}{tail}."


def german_text(rng: random.Random) -> str:
    """One to three German sentences."""
    return " ".join(german(rng) for _ in range(rng.choices((1, 2, 3), (6, 3, 1))[0]))


def french(rng: random.Random) -> str:
    """A French sentence."""
    return " ".join(map(rng.choice, _FRENCH))


def spanish(rng: random.Random) -> str:
    """A Spanish sentence."""
    return " ".join(map(rng.choice, _SPANISH))
